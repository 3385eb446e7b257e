"""The weight of a tenant's goal, kept to what the tenant asks."""

from collections.abc import Mapping, Sequence

import numpy as np

from classifier.tradeoff import solve
from gateway.config import Goal, Price
from gateway.routing import EXPECTED_ANSWER

WINDOW = 512  # requests that a weight is solved over
RENEW = 32  # requests after which it is solved again
EXPECTED_PROMPT = 256  # tokens, as long as nothing has been asked


class Balance:
    """Starts from the estimates that the classifier's training has left behind, at a usual length, and forgets them
    as real requests come."""

    def __init__(
        self,
        goal: Goal,
        floor: float | None,
        tiers: Sequence[str],
        sample: Mapping[str, Sequence[float]],
        prices: Sequence[Price],
    ) -> None:
        """`sample`: P(good) of some usual requests, by tier; `tiers` and `prices`: the cheapest first."""
        self.goal = goal
        self._floor = floor
        self._tiers = tuple(tiers)
        self._good = np.array([sample[tier] for tier in tiers], np.float64).T[:WINDOW].copy()
        usual = [(EXPECTED_PROMPT * price.input + EXPECTED_ANSWER * price.output) / 1e6 for price in prices]
        self._cost = np.tile(np.array(usual), (len(self._good), 1))
        self._next = 0
        self.weight = self._solve()

    def saw(self, good: Mapping[str, float], cost: Mapping[str, float]) -> None:
        """A request that was decided. What not every tier could have taken tells nothing of the balance."""
        if any(tier not in good or tier not in cost for tier in self._tiers):
            return
        at = self._next % len(self._good)
        self._good[at] = [good[tier] for tier in self._tiers]
        self._cost[at] = [cost[tier] for tier in self._tiers]
        self._next += 1
        if self._next % RENEW == 0:
            self.weight = self._solve()

    def _solve(self) -> float:
        return solve(self._good, self._cost, self.goal.kind, self.goal.value, self._floor)

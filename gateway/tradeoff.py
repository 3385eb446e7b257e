"""The weight λ that meets a goal: the share of cost, of quality or of requests that a tenant wants.

A request is a row: P(good) and expected cost of each tier, the cheapest first. With λ the row goes to the tier with
the most P(good) - λ · cost. As λ grows, cost and quality fall and more rows go to the cheapest tier, so that λ can be
found by halving (Lagrangian relaxation of a choice under a budget; Everett, Operations Research 11, 1963).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.config import Goal, Price
from gateway.routing import EXPECTED_ANSWER

Floats = NDArray[np.float64]

WINDOW = 512  # requests that a weight is solved over
RENEW = 32  # requests after which it is solved again
EXPECTED_PROMPT = 256  # tokens, as long as nothing has been asked
_STEPS = 50


def solve(good: Floats, cost: Floats, goal: Goal, floor: float | None = None) -> float:
    """λ for requests (n, tiers), n >= 1. The goal is met as exactly as whole requests allow: a cost never exceeds
    its share, a quality or a number of small answers never falls below, where any choice of tiers can do that."""
    if goal.kind == "answer_worth":
        return 1 / goal.value
    open_to = np.ones_like(good, bool) if floor is None else _reaching(good, floor)
    met = _GOALS[goal.kind]
    rows = np.arange(len(good))

    def meets(weight: float) -> bool:
        taken = np.where(open_to, good - weight * cost, -np.inf).argmax(axis=1)
        return met(good, cost, rows, taken, goal.value)

    spread = cost.max() - cost.min()
    if spread <= 0:
        return 0.0
    least, most = 1e-9 / spread, 1e9 / spread  # P(good) differs by at most 1
    grows = goal.kind != "quality_share"  # whether the goal is met from some λ on, or up to some λ
    if meets(0.0 if grows else most):
        return 0.0 if grows else most
    for _ in range(_STEPS):
        middle = (least * most) ** 0.5
        if meets(middle) == grows:
            most = middle
        else:
            least = middle
    return float(most if grows else least)


def _reaching(good: Floats, floor: float) -> NDArray[np.bool_]:
    reaching = good >= floor
    return reaching | ~reaching.any(axis=1, keepdims=True)


_Met = Callable[[Floats, Floats, NDArray[np.intp], NDArray[np.intp], float], bool]
_GOALS: dict[str, _Met] = {
    "cost_share": lambda good, cost, rows, taken, share: bool(
        cost[rows, taken].sum() <= share * cost[:, -1].sum() * (1 + 1e-12)
    ),
    "quality_share": lambda good, cost, rows, taken, share: bool(
        good[rows, taken].sum() >= share * good[:, -1].sum() * (1 - 1e-12)
    ),
    "small_share": lambda good, cost, rows, taken, share: bool((taken == 0).mean() >= share - 1e-12),
}


class Balance:
    """The weight of one tenant's goal, kept to what it asks for.

    It starts from the estimates that the classifier's training has left behind, at a usual length, and forgets them
    as real requests come.
    """

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
        return solve(self._good, self._cost, self.goal, self._floor)

"""Each tenant's policy, ready for `choose`: weights for goals, and the shadow policies decided beside it."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from gateway.config import Policy as Wanted
from gateway.config import Tenant, Tier
from gateway.request import Request, Route
from gateway.routing import Policy, Signals, choose, expected_cost
from gateway.tradeoff import Balance


class Desk:
    """Decides; `saw` tells it of what was decided for real, so that goals are kept over real requests."""

    def __init__(
        self, tiers: Sequence[Tier], sample: Mapping[str, Sequence[float]], shadows: Mapping[str, Wanted]
    ) -> None:
        """`sample`: P(good) of some usual requests by tier, as training has left it; `shadows`: by name."""
        self._tiers = tuple(tiers)
        self._sample = sample
        self._shadows = dict(shadows)
        self._balances: dict[tuple[str, Wanted, tuple[str, ...] | None], Balance] = {}

    def check(self, tenants: Sequence[Tenant]) -> None:
        """Raises ValueError for a goal over tiers that the classifier cannot tell apart."""
        for tenant in tenants:
            wanted = {"policy": tenant.policy}
            wanted |= {f"shadow_policies.{name}": policy for name, policy in self._shadows.items()}
            for place, policy in wanted.items():
                try:
                    self._policy(tenant, policy, None)
                except ValueError as error:
                    raise ValueError(f"{tenant.name}: {place}.{error}") from error

    def change(self, tiers: Sequence[Tier]) -> None:
        """Weights were solved for the old prices, where these are others."""
        if tuple(tiers) != self._tiers:
            self._tiers = tuple(tiers)
            self._balances.clear()

    def decide(self, request: Request, signals: Signals, named: str | None) -> Route:
        """`named`: the tier that the client asked for. Raises NoRoute."""
        if named is not None:
            return choose(signals, Policy(tier=named, max_tokens=request.max_tokens))
        tenant, length = request.tenant, request.max_tokens
        route = choose(signals, self._policy(tenant, tenant.policy, length))
        shadows = {
            name: choose(signals, self._policy(tenant, wanted, length)).order[0]
            for name, wanted in self._shadows.items()
        }
        return structs.replace(route, shadows=shadows) if shadows else route

    def saw(self, request: Request, signals: Signals) -> None:
        """A request for auto that was decided and will run."""
        if signals.assessment is None:
            return
        cost = {tier.name: expected_cost(tier, request.max_tokens) for tier in signals.tiers}
        for wanted in (request.tenant.policy, *self._shadows.values()):
            balance = self._balance(request.tenant, wanted)
            if balance is not None:
                balance.saw(signals.assessment.good, cost)

    def _policy(self, tenant: Tenant, wanted: Wanted, max_tokens: int | None) -> Policy:
        balance = self._balance(tenant, wanted)
        return Policy(
            floor=wanted.least,
            weight=None if balance is None else balance.weight,
            goal="" if balance is None else f"{balance.goal.kind} {balance.goal.value:g}",
            max_tokens=max_tokens,
        )

    def _balance(self, tenant: Tenant, wanted: Wanted) -> Balance | None:
        if not wanted.goals:
            return None
        key = (tenant.name, wanted, tenant.tiers)
        if key not in self._balances:
            self._balances[key] = self._new_balance(tenant, wanted)
        return self._balances[key]

    def _new_balance(self, tenant: Tenant, wanted: Wanted) -> Balance:
        tiers = [tier for tier in self._tiers if tenant.tiers is None or tier.name in tenant.tiers]
        unknown = [tier.name for tier in tiers if tier.name not in self._sample]
        goal = wanted.goals[0]
        if unknown:
            known = ", ".join(self._sample)
            raise ValueError(f"{goal.kind}: the classifier knows {known}, not {', '.join(unknown)}")
        return Balance(
            goal, wanted.least, [t.name for t in tiers], self._sample, [tier.price for tier in tiers]
        )

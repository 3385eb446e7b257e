"""Where a request goes, decided purely: `choose(signals, policy) -> Route`, with its reason in words.

Each tier has a P(good) and an expected cost. Without a weight, the least costly tier whose P(good) reaches the floor
is taken; where none reaches it, a dearer tier is taken only as long as it is expected to do better, since what is
hopeless for the largest tier too gains nothing there. With a weight λ, the tier with the most P(good) - λ · cost is
taken, among those that reach the floor if there is one and any does. `gateway.tradeoff` finds λ for a goal.
"""

from collections.abc import Mapping, Sequence
from math import isnan

import msgspec

from backends.backend import Usage
from classifier import Assessment
from gateway.config import Price
from gateway.prices import cost
from gateway.request import Route

WORTH_CLIMBING = 0.05  # the least gain in P(good) that a dearer tier must promise below the floor
EXPECTED_ANSWER = 256  # tokens of an answer, as far as costs are compared before there is one


class TierSignals(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one tier for one request, and of the replica of it that would take the request now."""

    name: str
    available: bool  # a replica answers
    context_length: int
    prompt_tokens: int  # by this tier's tokenizer
    cached_tokens: int  # of these, held by that replica
    price: Price = Price()
    load: float = 0.0  # that replica's running generations, as a share of what it takes at once


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """`tiers`: those that the tenant may use, the cheapest first. `pinned`: who answers in the open tool loop."""

    tiers: tuple[TierSignals, ...]
    assessment: Assessment | None
    pinned: str | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """`tier`: the one that the client named, None for auto. `max_tokens`: None where the client named none.

    `weight`: λ, in P(good) per unit of money; `goal` says in words what it was solved for.
    """

    tier: str | None = None
    floor: float | None = None
    weight: float | None = None
    goal: str = ""
    max_tokens: int | None = None


class NoRoute(Exception):
    """No tier can take the request. `longest` is the signals of the tier with the most context, if that is why."""

    def __init__(self, message: str, longest: TierSignals | None = None) -> None:
        super().__init__(message)
        self.longest = longest


def choose(signals: Signals, policy: Policy) -> Route:
    """Raises NoRoute when the prompt fits nowhere, or nothing that it fits answers, or no tier is left to choose."""
    asked = [tier for tier in signals.tiers if policy.tier in (None, tier.name)]
    if not asked:
        raise NoRoute("none may take the request")
    fitting = [tier for tier in asked if fits(tier, policy.max_tokens)]
    if not fitting:
        raise NoRoute("the prompt fits no tier", max(asked, key=lambda tier: tier.context_length))
    alive = [tier for tier in fitting if tier.available]
    if not alive:
        raise NoRoute(f"no replica of {' or '.join(tier.name for tier in fitting)} answers")
    if policy.tier is not None:
        return Route(order=(policy.tier,), reason=_words(alive[0], "requested"), assessment=None)
    taken, why = _pinned(alive, signals.pinned) or _best(alive, signals.assessment, policy)
    skipped = [tier.name for tier in fitting[: fitting.index(taken)] if not tier.available]
    if skipped:
        why += f", {' and '.join(skipped)} not available"
    return Route(
        order=_failover(alive, taken),
        reason=_words(taken, why),
        assessment=signals.assessment,
        weight=policy.weight,
    )


def fits(tier: TierSignals, max_tokens: int | None) -> bool:
    """Whether the prompt and the answer asked for (None: at least one token) fit into the tier's context."""
    return tier.prompt_tokens + (1 if max_tokens is None else max_tokens) <= tier.context_length


def expected_answer(max_tokens: int | None) -> int:
    """Tokens, as far as costs are compared before there is an answer."""
    return EXPECTED_ANSWER if max_tokens is None else min(max_tokens, EXPECTED_ANSWER)


def expected_cost(tier: TierSignals, max_tokens: int | None) -> float:
    """Money, in the unit of the prices: what is cached costs less, and so does a replica that is less busy.

    A replica that runs all that it takes at once counts twice, since whoever comes waits as long again.
    """
    usage = Usage(
        prompt_tokens=tier.prompt_tokens,
        completion_tokens=expected_answer(max_tokens),
        cached_tokens=tier.cached_tokens,
    )
    return cost(tier.price, usage) * (1 + tier.load)


def _pinned(tiers: Sequence[TierSignals], pinned: str | None) -> tuple[TierSignals, str] | None:
    """Changing models in the middle of a tool loop would lose what the calls were made for."""
    for tier in tiers:
        if tier.name == pinned:
            return tier, "keeps its tool loop"
    return None


def _best(
    tiers: Sequence[TierSignals], assessment: Assessment | None, policy: Policy
) -> tuple[TierSignals, str]:
    told = assessment.good if assessment is not None else {}
    good = {tier: p for tier, p in told.items() if not isnan(p)}
    judged = [tier for tier in tiers if tier.name in good]
    if not judged:
        return tiers[0], "no estimate, the cheapest"
    costs = {tier.name: expected_cost(tier, policy.max_tokens) for tier in judged}
    floor = policy.floor if policy.floor is not None else 0.0
    reaching = [tier for tier in judged if good[tier.name] >= floor]
    if policy.weight is not None:
        return _most_worth(reaching or judged, good, costs, policy.weight, policy.goal)
    if reaching:
        taken = min(reaching, key=lambda tier: costs[tier.name])
        return taken, f"p={good[taken.name]:.2f} >= {floor:.2f}"
    return _worth_climbing(judged, good, floor)


def _most_worth(
    tiers: Sequence[TierSignals],
    good: Mapping[str, float],
    costs: Mapping[str, float],
    weight: float,
    goal: str,
) -> tuple[TierSignals, str]:
    """Of two that are worth the same, the less costly."""
    taken = max(tiers, key=lambda t: (good[t.name] - weight * costs[t.name], -costs[t.name]))
    dearest = max(costs.values())
    share = costs[taken.name] / dearest if dearest else 1.0
    return taken, f"p={good[taken.name]:.2f} at {share:.0%} of the highest cost, {goal}"


def _worth_climbing(
    tiers: Sequence[TierSignals], good: Mapping[str, float], floor: float
) -> tuple[TierSignals, str]:
    taken = tiers[0]
    for tier in tiers[1:]:
        if good[tier.name] >= good[taken.name] + WORTH_CLIMBING:
            taken = tier
    return taken, f"p={good[taken.name]:.2f} < {floor:.2f}, the best expected gain"


def _failover(tiers: Sequence[TierSignals], taken: TierSignals) -> tuple[str, ...]:
    """The tier taken, then the dearer ones upwards, then the cheaper ones downwards."""
    at = tiers.index(taken)
    return tuple(tier.name for tier in (*tiers[at:], *reversed(tiers[:at])))


def _words(tier: TierSignals, why: str) -> str:
    return f"{tier.name}: {why}, {tier.cached_tokens:,} of {tier.prompt_tokens:,} prompt tokens cached"

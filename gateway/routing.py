"""Where a request goes, decided purely: `choose(signals, policy) -> Route`, with its reason in words.

Tiers come in the order of the configuration, the cheapest first. For `auto`, the cheapest tier whose P(good)
reaches the tenant's quality floor is taken. Where none reaches it, a dearer tier is taken only as long as it
is expected to do better: what is hopeless for the largest tier too gains nothing there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from classifier import Assessment
from gateway.request import Route

WORTH_CLIMBING = 0.05  # the least gain in P(good) that a dearer tier must promise below the floor


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSignals:
    """What is known of one tier for one request."""

    name: str
    available: bool  # a replica answers
    context_length: int
    prompt_tokens: int  # by this tier's tokenizer
    cached_tokens: int  # the longest prefix that one of its replicas holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """`tiers`: those that the tenant may use, the cheapest first."""

    tiers: tuple[TierSignals, ...]
    assessment: Assessment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """`tier`: the one that the client named, None for auto. `max_tokens`: None where the client named none."""

    tier: str | None
    quality_floor: float
    max_tokens: int | None


class NoRoute(Exception):
    """No tier can take the request. `longest` is the signals of the tier with the most context, if that is why."""

    def __init__(self, message: str, longest: TierSignals | None = None) -> None:
        super().__init__(message)
        self.longest = longest


def choose(signals: Signals, policy: Policy) -> Route:
    """Raises NoRoute when the prompt fits nowhere, or nothing that it fits answers."""
    asked = [tier for tier in signals.tiers if policy.tier in (None, tier.name)]
    fitting = [tier for tier in asked if fits(tier, policy.max_tokens)]
    if not fitting:
        raise NoRoute("the prompt fits no tier", max(asked, key=lambda tier: tier.context_length))
    alive = [tier for tier in fitting if tier.available]
    if not alive:
        raise NoRoute(f"no replica of {' or '.join(tier.name for tier in fitting)} answers")
    if policy.tier is not None:
        return Route(order=(policy.tier,), reason=_words(alive[0], "requested"), assessment=None)
    taken, why = _cheapest_good_enough(alive, signals.assessment, policy.quality_floor)
    skipped = [tier.name for tier in fitting[: fitting.index(taken)] if not tier.available]
    if skipped:
        why += f", {' and '.join(skipped)} not available"
    return Route(order=_failover(alive, taken), reason=_words(taken, why), assessment=signals.assessment)


def fits(tier: TierSignals, max_tokens: int | None) -> bool:
    """Whether the prompt and the answer asked for (None: at least one token) fit into the tier's context."""
    return tier.prompt_tokens + (1 if max_tokens is None else max_tokens) <= tier.context_length


def _cheapest_good_enough(
    tiers: Sequence[TierSignals], assessment: Assessment | None, floor: float
) -> tuple[TierSignals, str]:
    good = assessment.good if assessment is not None else {}
    judged = [tier for tier in tiers if tier.name in good]
    if not judged:
        return tiers[0], "no estimate, the cheapest"
    for tier in judged:
        if good[tier.name] >= floor:
            return tier, f"p={good[tier.name]:.2f} >= {floor:.2f}"
    taken = judged[0]
    for tier in judged[1:]:
        if good[tier.name] >= good[taken.name] + WORTH_CLIMBING:
            taken = tier
    return taken, f"p={good[taken.name]:.2f} < {floor:.2f}, the best expected gain"


def _failover(tiers: Sequence[TierSignals], taken: TierSignals) -> tuple[str, ...]:
    """The tier taken, then the dearer ones upwards, then the cheaper ones downwards."""
    at = tiers.index(taken)
    return tuple(tier.name for tier in (*tiers[at:], *reversed(tiers[:at])))


def _words(tier: TierSignals, why: str) -> str:
    return f"{tier.name}: {why}, {tier.cached_tokens} of {tier.prompt_tokens} prompt tokens cached"

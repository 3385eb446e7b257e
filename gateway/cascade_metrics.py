"""What the cascade did: answers held back, escalations, prompts read in advance, and tokens by what became of them."""

from collections.abc import Sequence
from itertools import product

from prometheus_client import CollectorRegistry

from backends.backend import Usage
from gateway.ledger import OUTCOMES
from gateway.series import Counter, Histogram

TOKEN_KINDS = ("prompt", "cached", "completion")
HOLDBACK_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
YES_NO = ("yes", "no")


class CascadeMetrics:
    def __init__(self, registry: CollectorRegistry, tiers: Sequence[str]) -> None:
        """`tiers`: the cheapest first. Every series is there at 0."""
        self._escalations = Counter(
            "headrace_escalations", "Answers found wanting, for which a dearer tier was asked.",
            ("from_tier", "to_tier"), registry=registry,
        )  # fmt: skip
        self._holdback = Histogram(
            "headrace_holdback_seconds", "From the first token of an answer until it was decided whether to keep it.",
            ("tier", "judged"), buckets=HOLDBACK_BUCKETS, registry=registry,
        )  # fmt: skip
        self._tokens = Counter(
            "headrace_ledger_tokens", "Tokens of all attempts by their outcome; `cached` ones are part of `prompt`.",
            ("tier", "outcome", "kind"), registry=registry,
        )  # fmt: skip
        self._warms = Counter(
            "headrace_warms", "Prompts that a dearer tier began to read in advance, and whether it answered then.",
            ("tier", "used"), registry=registry,
        )  # fmt: skip
        for at, tier in enumerate(tiers):
            for dearer in tiers[at + 1 :]:
                self._escalations.labels(tier, dearer)
        for tier, answer in product(tiers, YES_NO):
            self._holdback.labels(tier, answer)
            self._warms.labels(tier, answer)
        for labels in product(tiers, OUTCOMES, TOKEN_KINDS):
            self._tokens.labels(*labels)

    def escalated(self, tier: str, dearer: str) -> None:
        self._escalations.labels(tier, dearer).inc()

    def held(self, tier: str, seconds: float, *, judged: bool) -> None:
        """`judged`: whether anything could be said of the answer."""
        self._holdback.labels(tier, YES_NO[not judged]).observe(seconds)

    def warmed(self, tier: str, *, used: bool) -> None:
        self._warms.labels(tier, YES_NO[not used]).inc()

    def attempt(self, tier: str, outcome: str, usage: Usage) -> None:
        """One that has ended. `outcome`: one of `gateway.ledger.OUTCOMES`."""
        counts = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        for kind, count in zip(TOKEN_KINDS, counts, strict=True):
            self._tokens.labels(tier, outcome, kind).inc(count)

"""What learning from live traffic did beside it, and what it cost; no tenant is charged with any of that."""

from collections.abc import Sequence
from itertools import product

from prometheus_client import CollectorRegistry

from backends.backend import Usage
from gateway.cascade_metrics import TOKEN_KINDS
from gateway.series import Counter

RECORDED, FAILED = "recorded", "failed"
DROPPED = ("rate", "queue", "load")  # more than per_hour, than max_waiting, or the tiers had too much to do
OUTCOMES = (RECORDED, FAILED, *DROPPED)


class ShadowMetrics:
    def __init__(self, registry: CollectorRegistry, tiers: Sequence[str]) -> None:
        """Every series is there at 0."""
        self._samples = Counter(
            "headrace_shadow_samples", "Requests that were to be answered again, by what became of that.",
            ("outcome",), registry=registry,
        )  # fmt: skip
        self._tokens = Counter(
            "headrace_shadow_tokens", "Tokens of answering again and of grading; `cached` ones are part of `prompt`.",
            ("tier", "kind"), registry=registry,
        )  # fmt: skip
        self._cost = Counter(
            "headrace_shadow_cost", "What they would cost a tenant, in the money of the price list.",
            ("tier",), registry=registry,
        )  # fmt: skip
        for outcome in OUTCOMES:
            self._samples.labels(outcome)
        for tier, kind in product(tiers, TOKEN_KINDS):
            self._tokens.labels(tier, kind)
            self._cost.labels(tier)

    def sample(self, outcome: str) -> None:
        """`outcome`: one of OUTCOMES."""
        self._samples.labels(outcome).inc()

    def used(self, tier: str, usage: Usage, money: float) -> None:
        counts = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        for kind, count in zip(TOKEN_KINDS, counts, strict=True):
            self._tokens.labels(tier, kind).inc(count)
        self._cost.labels(tier).inc(money)

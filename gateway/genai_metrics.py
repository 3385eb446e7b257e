"""The `gen_ai.*` metrics of OpenTelemetry's GenAI conventions, for tools that know nothing of this gateway.

`server`: of requests, as a client of the gateway sees them; `client`: of attempts, as the gateway sees its replicas.
They are counted in Prometheus' histograms, so that those of several workers add up, under the names that
OpenTelemetry's mapping makes of theirs; `gateway.otlp_metrics` sends them on by their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from backends.backend import Usage
from gateway.conventions import PROVIDER, attributes, in_prometheus
from gateway.series import Histogram

CHAT, COMPLETION = "chat", "text_completion"
DURATIONS = tuple(0.01 * 2**power for power in range(14))
FIRST_TOKENS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKENS = tuple(float(4**power) for power in range(14))
WHO = ("operation", "provider", "tier", "model")  # attributes that all of them have


@dataclass(frozen=True)
class Instrument:
    """One histogram with the buckets that the conventions advise. `attributes`: keys of `gateway.conventions`."""

    name: str
    unit: str
    text: str
    buckets: tuple[float, ...]
    attributes: tuple[str, ...] = WHO


REQUEST = Instrument(
    "gen_ai.server.request.duration", "s", "Of a request, from its arrival to the end of its answer.",
    DURATIONS, (*WHO, "error"),
)  # fmt: skip
FIRST_TOKEN = Instrument(
    "gen_ai.server.time_to_first_token", "s", "Of complete answers, from arrival to the first text.", FIRST_TOKENS
)  # fmt: skip
TIME_PER_TOKEN = Instrument(
    "gen_ai.server.time_per_output_token", "s", "Of complete answers, per token after the first.", PER_TOKEN
)
ATTEMPT = Instrument(
    "gen_ai.client.operation.duration", "s", "Of one attempt at a replica.", DURATIONS, (*WHO, "error")
)
USED = Instrument(
    "gen_ai.client.token.usage", "{token}", "Tokens of one attempt.", TOKENS, (*WHO, "token_type")
)
INSTRUMENTS = (REQUEST, FIRST_TOKEN, TIME_PER_TOKEN, ATTEMPT, USED)


class GenAiMetrics:
    """Label values are names from the configuration, or of a closed set; one that is not known is empty."""

    def __init__(self, registry: CollectorRegistry, tiers: Sequence[str], engines: Mapping[str, str]) -> None:
        """`engines`: by name ("7b/0") the model. Series of chats are there at 0."""
        names = attributes()
        self._series = {
            made: Histogram(
                in_prometheus(made.name, made.unit),
                made.text,
                [in_prometheus(names[key]) for key in made.attributes],
                buckets=made.buckets,
                registry=registry,
            )
            for made in INSTRUMENTS
        }
        for tier in tiers:
            for asked in ("auto", tier):
                self._of(REQUEST, CHAT, asked, tier, "")
                self._of(FIRST_TOKEN, CHAT, asked, tier)
                self._of(TIME_PER_TOKEN, CHAT, asked, tier)
        for engine, model in engines.items():
            who = (CHAT, engine.partition("/")[0], model)
            self._of(ATTEMPT, *who, "")
            self._of(USED, *who, "input")
            self._of(USED, *who, "output")

    def request(self, operation: str, asked: str, tier: str, error: str, seconds: float) -> None:
        """`asked`: the name of a model that the client has written, if it is one of ours; `error`: its code."""
        self._of(REQUEST, operation, asked, tier, error).observe(seconds)

    def answered(
        self, operation: str, asked: str, tier: str, times: tuple[float, float], tokens: int
    ) -> None:
        """A complete answer; `times`: seconds to its first text, and to its end."""
        first, whole = times
        self._of(FIRST_TOKEN, operation, asked, tier).observe(first)
        if tokens > 1:
            self._of(TIME_PER_TOKEN, operation, asked, tier).observe((whole - first) / (tokens - 1))

    def attempt(
        self, operation: str, tier: str, model: str, error: str, seconds: float, usage: Usage | None
    ) -> None:
        """`error`: the code of what ended it, empty where it was not that; `usage`: where it came to something."""
        self._of(ATTEMPT, operation, tier, model, error).observe(seconds)
        if usage is not None:
            self._of(USED, operation, tier, model, "input").observe(usage.prompt_tokens)
            self._of(USED, operation, tier, model, "output").observe(usage.completion_tokens)

    def _of(self, made: Instrument, operation: str, *others: str) -> Histogram:
        return self._series[made].labels(operation, PROVIDER, *others)

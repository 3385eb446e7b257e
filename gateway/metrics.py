"""What `/metrics` shows: `vllm:*` series of the engines, `headrace_*` and `gen_ai_*` series of the gateway.

OpenTelemetry refuses names with a colon, hence prometheus_client, and of its formats text 0.0.4 alone: its OpenMetrics
turns the colon of a sample's name into an underscore. Every series is there, at 0, from the first scrape. Label
values come from the configuration or from a closed set; whatever else is called "other".
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric, generate_latest

from backends.backend import Backend, Timings, Usage
from backends.wire import EngineConfig, Load
from gateway.cascade_metrics import TOKEN_KINDS, CascadeMetrics
from gateway.engine_metrics import (
    FIRST_TOKEN_BUCKETS,
    LATENCY_BUCKETS,
    PER_TOKEN_BUCKETS,
    EngineMetrics,
)
from gateway.genai_metrics import GenAiMetrics
from gateway.lost_metrics import LostMetrics
from gateway.metrics_shared import SharedMetrics
from gateway.metrics_shown import Shown
from gateway.series import Counter, Gauge, Histogram
from gateway.shadow_metrics import ShadowMetrics
from gateway.totals import Totals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

OTHER = "other"
NO_TIER = "none"  # of requests that ended before a tier was chosen
NO_ERROR = "none"
ANSWERING = ("chat", "completions", "responses", "messages")
ENDPOINTS = (
    *ANSWERING, "stored_responses", "conversations", "sessions", "count_tokens", "route", "models", "admin",
)  # fmt: skip
ROUTE_REASONS = ("classifier", "requested", "pinned", "failover", "escalation")
ABORT_REASONS = ("client", "engine", "upstream", "deadline", "drain")
LIMIT_DECISIONS = (
    ("all", "allow"),
    ("all", "degraded"),
    ("requests", "deny"),
    ("tokens", "deny"),
    ("input_tokens", "deny"),
    ("output_tokens", "deny"),
    ("parallel", "deny"),
    ("budget_day", "deny"),
    ("budget_month", "deny"),
    ("budget", "unknown"),  # the store does not answer
)
STORES = ("limits", "sessions")
SESSION_EVENTS = ("opened", "recalled", "unknown")
PERIODS = ("day", "month")
RELOAD_RESULTS = ("success", "failure")
STREAM_ERRORS = (
    "engine_died",
    "engine_error",
    "upstream_eof",
    "upstream_timeout",
    "upstream_error",
    "deadline_exceeded",
)
MAX_ERROR_CODES = 64  # distinct ones; codes are ours, so this is only reached by a mistake

CLASSIFIER_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 1)
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Metrics:
    """All series of one gateway, on a registry of its own.

    Each gauge says how the values of several workers make one (`multiprocess_mode`).
    """

    def __init__(
        self,
        tiers: Sequence[str],
        engines: Mapping[str, str],
        tenants: Sequence[str],
        *,
        shadows: Sequence[str] = (),
        old_names: bool = False,
        shared: Path | None = None,
    ) -> None:
        """`engines`: by name ("7b/0") the model; `tenants`: names from the configuration, with the anonymous one;
        `shadows`: names of shadow policies.

        `old_names`: show the engines under `gateway.engine_metrics.OLD_NAMES` too. `shared`: the folder in which all
        processes of the gateway count, see `gateway.metrics_shared`; what is shown are their sums.
        """
        self._registry = CollectorRegistry()
        self._shown = Shown(self._registry if shared is None else SharedMetrics(shared), old_names)
        self._engines = EngineMetrics(self._registry, engines)
        self.cascade = CascadeMetrics(self._registry, tiers)
        self.shadow_samples = ShadowMetrics(self._registry, tiers)
        self.lost = LostMetrics(self._registry)
        self.gen_ai = GenAiMetrics(self._registry, tiers, engines)
        self._tiers = frozenset(tiers)
        self._backends: list[Backend] = []
        self._codes = {NO_ERROR, *STREAM_ERRORS}
        self._make_request_series()
        self._make_state_series()
        self._start_at_zero(tiers, tenants)
        _touch(self._shadows, shadows, ["yes", "no"])

    def _make_request_series(self) -> None:
        make = self._registry
        self._requests = Counter(
            "headrace_requests", "Requests ended; error_code also tells of streams that broke after a status of 200.",
            ("endpoint", "tier", "status", "error_code"), registry=make,
        )  # fmt: skip
        self._routes = Counter(
            "headrace_route_decisions", "Tiers chosen, and by what.", ("tier", "reason"), registry=make
        )
        self._shadows = Counter(
            "headrace_shadow_decisions", "Routes for auto, and whether a shadow policy would take the same tier.",
            ("policy", "agrees"), registry=make,
        )  # fmt: skip
        self._aborts = Counter(
            "headrace_stream_aborts",
            "Streams that ended before their answer did.",
            ("reason",),
            registry=make,
        )
        self._limits = Counter(
            "headrace_ratelimit_decisions",
            "Reservations taken or refused.",
            ("limit", "decision"),
            registry=make,
        )
        self._tokens = Counter(
            "headrace_tokens", "Tokens used; `cached` ones are part of `prompt`.", ("tenant", "tier", "kind"),
            registry=make,
        )  # fmt: skip
        self._cost = Counter(
            "headrace_cost", "Money for the tokens of all attempts, in that of the price list.", ("tenant", "tier"),
            registry=make,
        )  # fmt: skip
        self._largest_cost = Counter(
            "headrace_cost_largest_tier", "What the answers' tokens, cached ones as such, cost on the largest tier.",
            ("tenant", "tier"), registry=make,
        )  # fmt: skip
        self._spent = Gauge(
            "headrace_budget_spent",
            "Money of a tenant's budget that is gone in the running day or month, with what was reserved.",
            ("tenant", "period"), registry=make, multiprocess_mode="mostrecent",
        )  # fmt: skip
        self._sessions = Counter(
            "headrace_sessions",
            "Sessions opened, recalled, and asked for in vain.",
            ("event",),
            registry=make,
        )
        self._classifier = Histogram(
            "headrace_classifier_seconds",
            "Time of one assessment.",
            buckets=CLASSIFIER_BUCKETS,
            registry=make,
        )
        self._first_token = Histogram(
            "headrace_time_to_first_token_seconds", "From a request's arrival to the first text of its answer.",
            ("tier",), buckets=FIRST_TOKEN_BUCKETS, registry=make,
        )  # fmt: skip
        self._per_token = Histogram(
            "headrace_time_per_output_token_seconds", "Mean time per token after the first text of an answer.",
            ("tier",), buckets=PER_TOKEN_BUCKETS, registry=make,
        )  # fmt: skip
        self._seconds = Histogram(
            "headrace_request_seconds", "From a request's arrival to its end, errors included.",
            ("tier",), buckets=LATENCY_BUCKETS, registry=make,
        )  # fmt: skip

    def _make_state_series(self) -> None:
        make = self._registry
        self._inflight = Gauge(
            "headrace_backend_inflight", "Generations that this gateway has running there.", ("backend",),
            registry=make, multiprocess_mode="livesum",
        )  # fmt: skip
        self._up = Gauge(
            "headrace_backend_up", "1 where an attempt now has a chance.", ("backend",), registry=make,
            multiprocess_mode="livemin",
        )  # fmt: skip
        self._breakers = Gauge(
            "headrace_breaker_open", "1 while a server that failed is left alone.", ("backend",),
            registry=make, multiprocess_mode="livemax",
        )  # fmt: skip
        self._restarts = Counter(
            "headrace_engine_restarts", "Starts of an engine after its first.", ("engine",), registry=make
        )
        self._lag = Histogram(
            "headrace_event_loop_lag_seconds", "How late the gateway's event loop runs a timer.",
            buckets=LAG_BUCKETS, registry=make,
        )  # fmt: skip
        self._draining = Gauge(
            "headrace_draining", "1 while the gateway takes no new requests.", registry=make,
            multiprocess_mode="livemax",
        )  # fmt: skip
        self._config_version = Gauge(
            "headrace_config_version", "Number of the configuration that holds, from 1 at the start.",
            registry=make, multiprocess_mode="livemax",
        )  # fmt: skip
        self._reloads = Counter(
            "headrace_config_reloads", "Changes of the configuration that were tried.", ("result",),
            registry=make,
        )  # fmt: skip
        self._stores = Gauge(
            "headrace_state_backend_up", "0 where the last operation found the store not answering.", ("kind",),
            registry=make, multiprocess_mode="livemin",
        )  # fmt: skip

    def _start_at_zero(self, tiers: Sequence[str], tenants: Sequence[str]) -> None:
        _touch(self._requests, ENDPOINTS, [NO_TIER], ["200"], [NO_ERROR])
        _touch(self._requests, ANSWERING, tiers, ["200"], [NO_ERROR, *STREAM_ERRORS])
        _touch(self._routes, tiers, ROUTE_REASONS)
        _touch(self._aborts, ABORT_REASONS)
        self.tenants(tenants)
        self._config_version.set(1)
        _touch(self._reloads, RELOAD_RESULTS)
        _touch(self._sessions, SESSION_EVENTS)
        _touch(self._first_token, tiers)
        _touch(self._per_token, tiers)
        _touch(self._seconds, [*tiers, NO_TIER])
        _touch(self._restarts, self._engines.names)
        for decision in LIMIT_DECISIONS:
            self._limits.labels(*decision)
        for kind in STORES:
            self._stores.labels(kind).set(1)

    def tenants(self, names: Sequence[str]) -> None:
        """Tenants of the configuration, also those that a later one brings."""
        _touch(self._tokens, names, self._tiers, TOKEN_KINDS)
        _touch(self._cost, names, self._tiers)
        _touch(self._spent, names, PERIODS)
        _touch(self._largest_cost, names, self._tiers)

    def reloaded(self, number: int, *, success: bool) -> None:
        """A change of the configuration was tried; `number`: of the one that holds now."""
        self._reloads.labels(RELOAD_RESULTS[not success]).inc()
        self._config_version.set(number)

    def refresh(self) -> None:
        """Look at the backends of this process again, whose gauges show them as they were then."""
        for backend in self._backends:
            self._inflight.labels(backend.name).set(backend.in_flight)
            self._up.labels(backend.name).set(backend.available)
            self._breakers.labels(backend.name).set(backend.tripped)

    def render(self) -> bytes:
        """Everything in text 0.0.4; send it as `CONTENT_TYPE`, whatever the client would accept."""
        self.refresh()
        return generate_latest(self._shown)

    def collect(self) -> Iterable[Metric]:
        """All metrics as they are now, from any thread."""
        return self._shown.collect()

    def totals(self) -> Totals:
        """The values of all metrics as they are now."""
        return Totals(self.collect())

    def watch(self, backend: Backend) -> None:
        """Show this backend's generations and whether it is available, as they are when a scrape comes."""
        self._backends.append(backend)

    def describe(self, engine: EngineConfig) -> None:
        """What an engine is started with. Raises KeyError for an unknown one."""
        self._engines.describe(engine)

    def load(self, load: Load) -> None:
        """What an engine says of itself. Raises KeyError for an unknown engine."""
        self._engines.load(load)

    def idle(self, engine: str) -> None:
        """An engine is not there, so nothing runs in it."""
        self._engines.idle(engine)

    def generation(
        self, engine: str, usage: Usage, timings: Timings | None, n: int = 1, max_tokens: int | None = None
    ) -> None:
        """One that ended by itself. `n`, `max_tokens`: as asked for. Nothing is known of remote servers' insides."""
        if timings is not None:
            self._engines.generation(engine, usage, timings, n, max_tokens)

    def restarts(self, engine: str, total: int) -> None:
        """How often this engine was started again since the gateway began."""
        counter = self._restarts.labels(engine)
        counter.inc(total - _value(counter))

    def request(self, endpoint: str, tier: str | None, status: int, code: str | None, seconds: float) -> None:
        """A request's end. `code`: of the error, also one that broke a stream whose status was 200."""
        name = self._tier(tier)
        self._requests.labels(_among(endpoint, ENDPOINTS), name, str(status), self.error(code)).inc()
        self._seconds.labels(name).observe(seconds)

    def answered(self, tier: str, first_text: float, seconds: float, tokens: int) -> None:
        """A complete answer of `tokens` tokens: seconds to its first text, and to its end."""
        self._first_token.labels(self._tier(tier)).observe(first_text)
        if tokens > 1:
            self._per_token.labels(self._tier(tier)).observe((seconds - first_text) / (tokens - 1))

    def route(self, tier: str, reason: str) -> None:
        """`reason`: one of `ROUTE_REASONS`."""
        self._routes.labels(self._tier(tier), _among(reason, ROUTE_REASONS)).inc()

    def shadow(self, policy: str, *, agrees: bool) -> None:
        """What a shadow policy of the configuration says of a route that was taken."""
        self._shadows.labels(policy, "yes" if agrees else "no").inc()

    def aborted(self, reason: str) -> None:
        """`reason`: one of `ABORT_REASONS`."""
        self._aborts.labels(_among(reason, ABORT_REASONS)).inc()

    def classified(self, seconds: float) -> None:
        self._classifier.observe(seconds)

    def limit(self, limit: str, decision: str) -> None:
        """One of `LIMIT_DECISIONS`: who refused, or that all agreed (`degraded`: by this gateway's own counts)."""
        known = (limit, decision) in LIMIT_DECISIONS
        self._limits.labels(*((limit, decision) if known else (OTHER, OTHER))).inc()

    def tokens(self, tenant: str, tier: str, usage: Usage) -> None:
        """`tenant`: a name from the configuration."""
        counts = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        for kind, count in zip(TOKEN_KINDS, counts, strict=True):
            self._tokens.labels(tenant, self._tier(tier), kind).inc(count)

    def money(self, tenant: str, tier: str, spent: float) -> None:
        """What an attempt cost."""
        self._cost.labels(tenant, self._tier(tier)).inc(spent)

    def money_of_largest(self, tenant: str, tier: str, largest: float) -> None:
        """What an answer of this tier would have cost on the largest one."""
        self._largest_cost.labels(tenant, self._tier(tier)).inc(largest)

    def budget(self, tenant: str, period: str, spent: float) -> None:
        """What is gone of a budget that the tenant has; `period`: one of `PERIODS`."""
        self._spent.labels(tenant, period).set(spent)

    def session(self, event: str) -> None:
        """`event`: one of `SESSION_EVENTS`."""
        self._sessions.labels(_among(event, SESSION_EVENTS)).inc()

    def state_backend(self, kind: str, *, up: bool) -> None:
        """Whether the store of this `kind` (one of `STORES`) answered."""
        self._stores.labels(_among(kind, STORES)).set(up)

    def draining(self, on: bool) -> None:
        self._draining.set(on)

    def lag(self, seconds: float) -> None:
        self._lag.observe(seconds)

    def _tier(self, tier: str | None) -> str:
        if tier is None:
            return NO_TIER
        return tier if tier in self._tiers else OTHER

    def error(self, code: str | None) -> str:
        """The code as a label, of which there are so many at most."""
        if code is None:
            return NO_ERROR
        if code not in self._codes and len(self._codes) >= MAX_ERROR_CODES:
            return OTHER
        self._codes.add(code)
        return code


async def measure_lag(metrics: Metrics, interval: float = 0.1) -> None:
    """Run as a task: each `interval` seconds, how late the event loop is."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval
        await asyncio.sleep(interval)
        metrics.lag(max(0.0, loop.time() - due))


def _touch(series: Counter | Gauge | Histogram, *values: Iterable[str]) -> None:
    """Make every combination of label values, so that a first event is seen as a rise from 0."""
    for labels in product(*values):
        series.labels(*labels)


def _among(value: str, known: Collection[str]) -> str:
    return value if value in known else OTHER


def _value(counter: Counter) -> float:
    return next(sample.value for metric in counter.collect() for sample in metric.samples)

"""What is told of a call when it is over: to the metrics, its trace, the log, and the records."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from backends.backend import Usage
from gateway.dashboard.watch import Watch
from gateway.errors import CLIENT_GONE
from gateway.exchange import Exchange, Observe
from gateway.genai_metrics import CHAT, COMPLETION
from gateway.ledger import ANSWERED, FAILED, RUNNING, Ledger
from gateway.logs import log_request
from gateway.metrics import ANSWERING, Metrics
from gateway.records import Records
from gateway.telemetry import Traces

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNKNOWN = "_OTHER"  # OpenTelemetry's word for a method that is not known
# Why an answer ended before it was complete, by error code.
ABORTS = {
    "engine_died": "engine",
    "engine_error": "engine",
    "upstream_eof": "upstream",
    "upstream_timeout": "upstream",
    "upstream_protocol": "upstream",
    "upstream_too_large": "upstream",
    "upstream_error": "upstream",
    "deadline_exceeded": "deadline",
    "draining": "drain",
}


def observer(metrics: Metrics, traces: Traces, watch: Watch, records: Records | None = None) -> Observe:
    """Surrounds every call but the probes, which come every few seconds and mean nothing."""

    @contextmanager
    def observe(exchange: Exchange, scope: Scope) -> Iterator[None]:
        if exchange.endpoint == "probe":
            yield
            return
        method = scope["method"] if scope["method"] in METHODS else UNKNOWN
        with (
            watch.running(exchange),
            traces.request(method, exchange.route, exchange.headers, exchange.ledger.stages) as span,
        ):
            try:
                yield
            finally:
                code = None if exchange.error is None else exchange.error.code
                span.answered(exchange.status, code)
                _count(metrics, exchange, code)
                if exchange.endpoint in ANSWERING:
                    _count_by_convention(metrics, exchange, code)
                _log(exchange, code, span.trace_id)
                if records is not None and exchange.endpoint in ANSWERING:
                    records.write(exchange, span.trace_id)

    return observe


def _count(metrics: Metrics, exchange: Exchange, code: str | None) -> None:
    tier = None if exchange.answer is None else exchange.answer.tier
    metrics.request(exchange.endpoint, tier, exchange.status, code, exchange.seconds)
    if exchange.endpoint not in ANSWERING:
        return
    if exchange.status == CLIENT_GONE:
        metrics.aborted("client")
    elif exchange.answer is not None and code in ABORTS:
        metrics.aborted(ABORTS[code])


def _count_by_convention(metrics: Metrics, exchange: Exchange, code: str | None) -> None:
    """Names of models that are none are what a client has typed, and told to nobody."""
    operation = COMPLETION if exchange.endpoint == "completions" else CHAT
    answer, usage = exchange.answer, exchange.usage
    asked = exchange.requests[0].model if answer is not None and exchange.requests else ""
    tier = "" if answer is None else answer.tier
    gone = "client_gone" if exchange.status == CLIENT_GONE else ""
    error = gone if code is None else metrics.error(code)
    metrics.gen_ai.request(operation, asked, tier, error, exchange.seconds)
    if usage is not None and exchange.first_text is not None and not error:
        times = exchange.first_text, exchange.seconds
        metrics.gen_ai.answered(operation, asked, tier, times, usage.completion_tokens)
    now = time.time()
    for entry in exchange.ledger.entries:
        failed = entry.kind == FAILED and entry.outcome != RUNNING
        error = metrics.error(entry.outcome) if failed else ""
        # Sums must not fall when the clock is put back.
        seconds = max(0.0, (entry.ended or now) - entry.started)
        metrics.gen_ai.attempt(operation, entry.tier, entry.model, error, seconds, entry.usage)


def _log(exchange: Exchange, code: str | None, trace_id: str | None) -> None:
    answer = exchange.answer
    assessment = None if answer is None else answer.route.assessment
    log_request(
        request_id=exchange.id,
        trace_id=trace_id,
        endpoint=exchange.endpoint,
        status=exchange.status,
        seconds=exchange.seconds,
        code=code,
        tenant=None if exchange.tenant is None else exchange.tenant.name,
        tier=None if answer is None else answer.tier,
        reason=None if answer is None else answer.headers.get("x-headrace-reason"),
        task=None if assessment is None else assessment.task,
        usage=_used(exchange.ledger) or exchange.usage,
        attempts=_attempts(exchange.ledger),
        cost=sum(entry.cost for entry in exchange.ledger.entries),
        first_text=exchange.first_text,
    )


def _used(ledger: Ledger) -> Usage | None:
    """By all attempts, as its cost is; None where none came to anything."""
    used = [entry.usage for entry in ledger.entries if entry.usage is not None]
    if not used:
        return None
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in used),
        completion_tokens=sum(usage.completion_tokens for usage in used),
        cached_tokens=sum(usage.cached_tokens for usage in used),
    )


def _attempts(ledger: Ledger) -> str | None:
    """What became of each; None where all of them answered, which tier and status say already."""
    if all(entry.outcome == ANSWERED for entry in ledger.entries):
        return None
    return ", ".join(f"{entry.replica} {entry.outcome}" for entry in ledger.entries)

"""One trace per request, from the client's call to the engine's steps.

Spans:  POST /v1/chat/completions            server
        ├── headrace.auth … headrace.route    see `gateway.dispatch`
        ├── chat 7b                           an attempt, with GenAI attributes
        │   ├── engine.queue                  made from the times that the engine reports
        │   ├── engine.prefill
        │   │   └── engine.step               each, where they are asked for
        │   └── engine.decode
        │       └── engine.step
        └── headrace.settle

Spans never hold prompt text, stop strings, or the messages of exceptions: an error is its code. Only W3C trace context
comes in and goes out, no baggage. A client cannot force its trace to be sampled: the decision hangs on the trace id
alone, so that all parts of a trace agree.
"""

import asyncio
import time
from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import Self

from opentelemetry.context import Context
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from backends.backend import Generation
from gateway import conventions
from gateway.attempt_span import AttemptSpan, Followed, Unfollowed
from gateway.config import Telemetry
from gateway.ledger import Entry, Stage
from gateway.lost_metrics import LostMetrics
from gateway.span_encoding import Attributes
from gateway.span_export import SpanExport
from gateway.spans import NO_SPAN, SERVER, Outside, Span, Tracer, mark
from gateway.tiers import Replica

Around = tuple[Span, list[Stage] | None]
"""The outermost span of a request, and where its stages are told."""

_around: ContextVar[Around] = ContextVar("the request that is served here", default=(NO_SPAN, None))


class Traces:
    """Where spans are made. Without a collector they are not: then a client's trace context is only passed on."""

    def __init__(self, config: Telemetry, lost: LostMetrics | None = None) -> None:
        """`lost`: told of spans that do not get to the collector."""
        self._export: SpanExport | None = None
        self._tracer: Tracer | None = None
        self._names = conventions.attributes()
        if config.otlp_endpoint is not None:
            self._export = SpanExport(config, config.otlp_endpoint, lost)
            self._tracer = Tracer(self._export.add, config.sample_ratio)

    @property
    def exported(self) -> bool:
        """Whether there is a collector."""
        return self._tracer is not None

    async def close(self) -> None:
        """Send what is left, see `SpanExport.close`. Idempotent."""
        export, self._export, self._tracer = self._export, None, None
        if export is not None:
            await asyncio.to_thread(export.close)

    def request(
        self, method: str, route: str, headers: Mapping[str, str], stages: list[Stage] | None = None
    ) -> "RequestSpan":
        """The span of a whole request, around everything that is done for it, its stream included.

        `route`: a path of ours, not what the client has typed; `headers`: with names in lower case. Its stages are
        added to `stages`, whether the request is traced or not.
        """
        span = _outside(headers.get("traceparent"))
        if self._tracer is not None:
            told: Attributes = {"http.request.method": method, "http.route": route}
            span = self._tracer.start(f"{method} {route}", span, kind=SERVER, attributes=told)
        return RequestSpan(span, stages)

    def span(self, name: str, **attributes: AttributeValue) -> "_Stage":
        """A stage of the request; `attributes` get the prefix `headrace.`."""
        root, stages = _around.get()
        if self._tracer is None:  # then a stage costs its two readings of the clock
            return _Stage(name, NO_SPAN, stages, time.time_ns())
        told = {f"headrace.{key}": value for key, value in attributes.items()} if attributes else None
        now = time.time_ns()
        return _Stage(name, self._tracer.start(name, root, attributes=told, at=now), stages, now)

    def attempt(self, entry: Entry, replica: Replica, generation: Generation) -> Followed:
        """What the replica streams, in a span of its own with the outcome of `entry`; the trace context goes along."""
        root, _ = _around.get()
        if self._tracer is None:
            return Unfollowed(replica, generation, root)
        return AttemptSpan(self._tracer, root, self._names, entry, replica, generation)


def _outside(traceparent: str | None) -> Span:
    """The client's span, of which ids are taken over, and nothing that it may write into `tracestate`."""
    if traceparent is None:
        return NO_SPAN
    context = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())
    given = get_current_span(context).get_span_context()
    if not given.is_valid:
        return NO_SPAN
    return Outside(given.trace_id.to_bytes(16), given.span_id.to_bytes(8), given.trace_flags)


class RequestSpan:
    """The span of a request, as the middleware sees it. Stages and attempts inside the block are below it."""

    __slots__ = ("_around", "_span", "_token")

    def __init__(self, span: Span, stages: list[Stage] | None) -> None:
        self._span = span
        self._around: Around = span, stages

    def __enter__(self) -> Self:
        self._token: Token[Around] = _around.set(self._around)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        _around.reset(self._token)
        if error is not None:
            mark(self._span, error)
        self._span.end()

    @property
    def trace_id(self) -> str | None:
        """32 hexadecimal digits; None where nothing is traced."""
        return self._span.trace.hex() or None

    def answered(self, status: int, code: str | None = None) -> None:
        """`code`: of the error, also of one that broke a stream whose status was 200."""
        self._span.set_attribute("http.response.status_code", status)
        if code is not None:
            self._span.set_attribute("error.type", code)
        if status >= 500 or (status < 400 and code is not None):
            self._span.fail()


class _Stage:
    """Marks its span with what is raised, ends it, and enters the stage into the ledger, however it ends."""

    __slots__ = ("_name", "_span", "_stages", "_started")

    def __init__(self, name: str, span: Span, stages: list[Stage] | None, started: int) -> None:
        self._name = name
        self._span = span
        self._stages = stages
        self._started = started

    def __enter__(self) -> Span:
        return self._span

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        ended = time.time_ns()
        if error is not None:
            mark(self._span, error)
        self._span.end(ended)
        if self._stages is not None:
            self._stages.append(Stage(self._name, self._started / 1e9, ended / 1e9))

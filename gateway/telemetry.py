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
import threading
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, contextmanager
from contextvars import ContextVar

import msgspec
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    INVALID_SPAN,
    Span,
    SpanKind,
    StatusCode,
    format_span_id,
    format_trace_id,
    get_current_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from backends.backend import BackendError, Delta, Generation, Timings, Usage
from backends.wire import StepRun
from gateway import conventions
from gateway.config import Telemetry
from gateway.conventions import PROVIDER
from gateway.errors import ApiError
from gateway.ledger import ABORTED, ANSWERED, RUNNING, Entry, Stage
from gateway.span_encoding import speed_up_export
from gateway.spans import Attributes, Current, Tracer, current
from gateway.tiers import Replica

MAX_QUEUE = 4096  # spans waiting for the collector; the oldest are dropped beyond
MAX_BATCH = 512
EXPORT_EVERY = 1.0  # seconds
EXPORT_TIMEOUT = 5.0  # seconds for one batch, with its retries
FLUSH_TIMEOUT = 2.0  # seconds that stopping waits for a collector
MAX_INT = 2**63 - 1  # of OTLP; a larger one would cost its whole batch

_stages: ContextVar[list[Stage] | None] = ContextVar("stages of the request", default=None)


class Traces:
    """Where spans are made. Without a collector they are not: then a client's trace context is only passed on."""

    def __init__(self, config: Telemetry) -> None:
        self._processor: BatchSpanProcessor | None = None
        self._exporter: OTLPSpanExporter | None = None
        self._tracer: Tracer | None = None
        self._propagator = TraceContextTextMapPropagator()
        self._names = conventions.attributes()
        if config.otlp_endpoint is not None:
            self._export(config, config.otlp_endpoint)

    def _export(self, config: Telemetry, endpoint: str) -> None:
        speed_up_export()
        self._exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_TIMEOUT)
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=MAX_QUEUE,
            schedule_delay_millis=EXPORT_EVERY * 1000,
            max_export_batch_size=MAX_BATCH,
        )
        resource = Resource.create({SERVICE_NAME: config.service_name})
        self._tracer = Tracer(self._processor, resource, PROVIDER, config.sample_ratio)

    @property
    def exported(self) -> bool:
        """Whether there is a collector."""
        return self._tracer is not None

    async def close(self) -> None:
        """Send what is left, for `FLUSH_TIMEOUT` seconds at most. Idempotent."""
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        processor, exporter = self._processor, self._exporter
        self._processor = self._exporter = self._tracer = None
        if processor is None or exporter is None:
            return
        # The SDK's own waiting has no limit below 30 s; a daemon thread does not hold the process up.
        flushing = threading.Thread(target=processor.shutdown, name="flush of traces", daemon=True)
        flushing.start()
        flushing.join(FLUSH_TIMEOUT)
        if flushing.is_alive():
            exporter.shutdown()  # type: ignore[no-untyped-call]

    @contextmanager
    def request(
        self, method: str, route: str, headers: Mapping[str, str], stages: list[Stage] | None = None
    ) -> Iterator["RequestSpan"]:
        """The span of a whole request, around everything that is done for it, its stream included.

        `route`: a path of ours, not what the client has typed; `headers`: with names in lower case. Its stages are
        added to `stages`, whether the request is traced or not.
        """
        outside = _stages.set(stages)
        try:
            span = self._outermost(method, route, self._outside(headers))
            with Current(span), _Marking(span):
                yield RequestSpan(span)
        finally:
            _stages.reset(outside)

    def _outside(self, headers: Mapping[str, str]) -> Span:
        """The client's, of which ids are taken over, and nothing that it may write into `tracestate`."""
        given = headers.get("traceparent")
        if given is None:
            return INVALID_SPAN
        return get_current_span(self._propagator.extract({"traceparent": given}, Context()))

    def _outermost(self, method: str, route: str, outside: Span) -> Span:
        if self._tracer is None:
            return outside
        attributes: Attributes = {"http.request.method": method, "http.route": route}
        return self._tracer.start(
            f"{method} {route}", parent=outside, kind=SpanKind.SERVER, attributes=attributes
        )

    def span(self, name: str, **attributes: AttributeValue) -> AbstractContextManager[Span]:
        """A stage of the request; `attributes` get the prefix `headrace.`."""
        if self._tracer is None:  # then a stage costs its two readings of the clock
            return _Timed(name)
        told = {f"headrace.{key}": value for key, value in attributes.items()} if attributes else None
        return _Traced(name, self._tracer.start(name, attributes=told))

    def attempt(self, entry: Entry, replica: Replica, generation: Generation) -> AsyncGenerator[Delta, None]:
        """What the replica streams, in a span of its own with the outcome of `entry`; the trace context goes along.

        The span's parent is the span that is current now, not when the first delta is asked for.
        """
        parent = current()
        if self._tracer is None:
            return replica.backend.stream(_in_trace(generation, parent))
        return self._attempt(self._tracer, entry, replica, generation, parent)

    async def _attempt(
        self, tracer: Tracer, entry: Entry, replica: Replica, generation: Generation, parent: Span
    ) -> AsyncGenerator[Delta, None]:
        # Never the current span: a generator runs in the contexts of whoever pulls it.
        operation = "chat" if generation.prompt.is_conversation else "text_completion"
        span = tracer.start(f"{operation} {entry.tier}", parent=parent, kind=SpanKind.CLIENT)
        if span.is_recording():
            span.set_attributes(self._asked(operation, entry.tier, replica, generation))
        follower = _Follower(span, entry, self._names, tracer)
        try:
            with _Marking(span):
                async with aclosing(replica.backend.stream(_in_trace(generation, span))) as deltas:
                    async for delta in deltas:
                        follower.see(delta)
                        yield delta
        except BackendError as error:
            follower.failed(error.code)
            raise
        finally:
            follower.end()

    def _asked(self, operation: str, tier: str, replica: Replica, generation: Generation) -> Attributes:
        sampling = generation.sampling
        values: Attributes = {
            "operation": operation,
            "provider": PROVIDER,
            "tier": tier,
            "model": replica.model,
            "id": generation.id,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.top_k:
            values["top_k"] = sampling.top_k
        if sampling.seed <= MAX_INT:
            values["seed"] = sampling.seed
        return {self._names[key]: value for key, value in values.items()} | {
            "headrace.tier": tier,
            "headrace.replica": replica.name,
        }


class RequestSpan:
    """The span of a request, as the middleware sees it."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def trace_id(self) -> str | None:
        """32 hexadecimal digits; None where nothing is traced."""
        context = self._span.get_span_context()
        return format_trace_id(context.trace_id) if context.is_valid else None

    def answered(self, status: int, code: str | None = None) -> None:
        """`code`: of the error, also of one that broke a stream whose status was 200."""
        self._span.set_attribute("http.response.status_code", status)
        if code is not None:
            self._span.set_attribute("error.type", code)
        if status >= 500 or (status < 400 and code is not None):
            self._span.set_status(StatusCode.ERROR)


class _Follower:
    """Watches the deltas of one attempt and says on its span what came of it."""

    def __init__(self, span: Span, entry: Entry, names: Mapping[str, str], tracer: Tracer) -> None:
        self._span = span
        self._entry = entry
        self._recording = span.is_recording()
        self._names = names
        self._tracer = tracer
        self._started = time.monotonic()
        self._begun = False
        self._reasons: list[str] = []  # why each answer ended
        self._finished = False
        self._failure: str | None = None

    def see(self, delta: Delta) -> None:
        if not self._recording:
            return
        if not self._begun:
            self._begun = True
            self._span.set_attribute(self._names["first_chunk"], time.monotonic() - self._started)
        if delta.finish is not None:
            self._reasons.append(delta.finish)
        if delta.usage is not None:
            self._finish(delta, delta.usage)

    def _finish(self, delta: Delta, usage: Usage) -> None:
        self._finished = True
        self._span.set_attribute(self._names["finish"], self._reasons)
        for key in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            self._span.set_attribute(self._names[key], getattr(usage, key))
        if delta.timings is not None:
            self._stages(delta.timings)

    def _stages(self, times: Timings) -> None:
        stages = (
            ("engine.queue", times.arrived, times.scheduled),
            ("engine.prefill", times.scheduled, times.first_token),
            ("engine.decode", times.first_token, times.finished),
        )
        for name, begin, end in stages:
            if begin is not None and end is not None:
                stage = self._tracer.start(name, parent=self._span, at=_nanoseconds(begin))
                self._steps(stage, [step for step in times.steps if begin < step.ended <= end])
                stage.end(_nanoseconds(end))

    def _steps(self, stage: Span, steps: Iterable[StepRun]) -> None:
        for step in steps:
            told: Attributes = {
                "headrace.step.tokens": step.tokens,
                "headrace.step.rows": step.rows,
                "headrace.step.total_tokens": step.total,
            }
            at = _nanoseconds(step.began)
            self._tracer.start("engine.step", parent=stage, attributes=told, at=at).end(
                _nanoseconds(step.ended)
            )

    def failed(self, code: str) -> None:
        self._failure = code

    def end(self) -> None:
        """Who judges the answer, or does not wait for it, has entered its outcome by now."""
        if self._recording:
            self._span.set_attribute("headrace.complete", self._finished)
            self._span.set_attribute("headrace.outcome", self._outcome)
            if self._entry.confidence is not None:
                self._span.set_attribute("headrace.confidence", self._entry.confidence)
        self._span.end()

    @property
    def _outcome(self) -> str:
        if self._entry.outcome != RUNNING:
            return self._entry.outcome
        return self._failure or (ANSWERED if self._finished else ABORTED)


class _Marking:
    """Mark the span with what is raised, by code or type: a message may hold what the client has sent."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> None:
        """Nothing is wrong yet."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        if error is not None:
            _mark(self._span, error)


def _mark(span: Span, error: BaseException) -> None:
    if isinstance(error, GeneratorExit | asyncio.CancelledError):
        return  # whoever asked is gone; nothing has failed
    known = error.code if isinstance(error, BackendError | ApiError) else None
    span.set_attribute("error.type", known or type(error).__name__)
    span.set_status(StatusCode.ERROR)


class _Timed:
    """Enters the stage into the request's ledger when it is over, however that is."""

    __slots__ = ("_name", "_started")

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = time.time()

    def __enter__(self) -> Span:
        return INVALID_SPAN

    def __exit__(self, *_: object) -> None:
        if (stages := _stages.get()) is not None:
            stages.append(Stage(self._name, self._started, time.time()))


class _Traced(Current):
    """A stage in a span of its own, marked with what is raised, and entered into the ledger."""

    __slots__ = ("_timed",)

    def __init__(self, name: str, span: Span) -> None:
        super().__init__(span)
        self._timed = _Timed(name)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        if error is not None:
            _mark(self._span, error)
        super().__exit__(kind, error, at)
        self._timed.__exit__()


def _in_trace(generation: Generation, span: Span) -> Generation:
    """With the W3C header that makes this span a parent elsewhere, if anything is traced."""
    context = span.get_span_context()
    if not context.is_valid:
        return generation
    trace, parent = format_trace_id(context.trace_id), format_span_id(context.span_id)
    return msgspec.structs.replace(generation, traceparent=f"00-{trace}-{parent}-{context.trace_flags:02x}")


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)

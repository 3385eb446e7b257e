"""Spans that cost little to make: OpenTelemetry's, without what it does for spans of any kind.

Its SDK's span takes a lock for each attribute and copies, checks and bounds them; a request has half a dozen spans and
thirty attributes, all ours, set from one thread at a time. Sampling, export and all that leaves the process are the
SDK's.
"""

import time
from collections.abc import Mapping
from contextvars import ContextVar
from random import getrandbits
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    INVALID_SPAN,
    INVALID_SPAN_ID,
    INVALID_TRACE_ID,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)
from opentelemetry.util.types import AttributeValue

MAX_ATTRIBUTE_LENGTH = 1024  # characters

Attributes = dict[str, AttributeValue]
_SAMPLED, _NOT_SAMPLED = TraceFlags(TraceFlags.SAMPLED), TraceFlags(TraceFlags.DEFAULT)
_UNSET, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)
_NO_STATE = TraceState.get_default()

_current: ContextVar[Span] = ContextVar("span of what is being done", default=INVALID_SPAN)


def current() -> Span:
    """The span of what is being done here; one that is not valid where there is none."""
    return _current.get()


class Tracer:
    """Makes spans and hands them to `processor` when they end. Times are in nanoseconds of POSIX time."""

    def __init__(self, processor: SpanProcessor, resource: Resource, scope: str, ratio: float) -> None:
        """`ratio`: the share of traces that are sampled; whether one is hangs on its id alone."""
        self._processor = processor
        self._resource = _Resource(resource.attributes, resource.schema_url)
        self._scope = InstrumentationScope(scope)
        self._sampled_below = TraceIdRatioBased(ratio).bound

    def start(
        self,
        name: str,
        *,
        parent: Span | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        at: int | None = None,
    ) -> Span:
        """`parent`: by default the current span. `at`: its start, by default now."""
        above = (_current.get() if parent is None else parent).get_span_context()
        trace_id, _, _, _, state, valid = above
        if not valid:
            trace_id, state = _random(128, INVALID_TRACE_ID), _NO_STATE
        sampled = trace_id & TraceIdRatioBased.TRACE_ID_LIMIT < self._sampled_below
        own = _context(trace_id, _random(64, INVALID_SPAN_ID), sampled, state)
        if not sampled:
            return NonRecordingSpan(own)
        return _Span(self._processor, self._resource, self._scope, name, own,
                     above if valid else None, kind, attributes, at or time.time_ns())  # fmt: skip


def _context(trace_id: int, span_id: int, sampled: bool, state: TraceState) -> SpanContext:
    """As its constructor makes one, which looks whether ids of our own are any good."""
    flags = _SAMPLED if sampled else _NOT_SAMPLED
    return tuple.__new__(SpanContext, (trace_id, span_id, False, flags, state, True))


class Current:
    """The span is the current one inside the block, and ends with it."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        self._token = _current.set(self._span)
        return self._span

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        _current.reset(self._token)
        self._span.end()


class _Resource(Resource):
    """One for all spans. The SDK's is turned into JSON for its hash, once for each span that is sent."""

    def __hash__(self) -> int:
        return id(self)


class _Span(ReadableSpan, Span):
    """Written to as one span, and read by the exporter as the other, whose constructor this one does without."""

    _events: Any = ()
    _links: Any = ()
    _instrumentation_info = None

    def __init__(
        self,
        processor: SpanProcessor,
        resource: Resource,
        scope: InstrumentationScope,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        attributes: Attributes | None,
        started: int,
    ) -> None:
        self._processor = processor
        self._resource = resource
        self._instrumentation_scope = scope
        self._name = name
        self._context = self._own = context
        self._parent = parent
        self._kind = kind
        self._status = _UNSET
        self._start_time = started
        self._end_time = None
        self._attributes = self._values = Attributes()
        if attributes:
            self.set_attributes(attributes)

    def get_span_context(self) -> SpanContext:
        return self._own

    def is_recording(self) -> bool:
        return self._end_time is None

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        if self._end_time is None:
            self._values[key] = value[:MAX_ATTRIBUTE_LENGTH] if isinstance(value, str) else value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Descriptions are dropped: they might hold what a client has sent."""
        code = status.status_code if isinstance(status, Status) else status
        if self._end_time is None:
            self._status = _ERROR if code is StatusCode.ERROR else Status(code)

    def update_name(self, name: str) -> None:
        self._name = name

    def add_event(self, *_: object, **__: object) -> None:
        """We have none."""

    def record_exception(self, *_: object, **__: object) -> None:
        """Nothing: messages and stacks of exceptions stay here."""

    def end(self, end_time: int | None = None) -> None:
        """Only the first end counts."""
        if self._end_time is None:
            self._end_time = end_time or time.time_ns()
            self._processor.on_end(self)


def _random(bits: int, invalid: int) -> int:
    while (number := getrandbits(bits)) == invalid:
        pass
    return number

"""Spans that cost little to make: OpenTelemetry's, without what it does for spans of any kind.

Its SDK's span takes a lock for each attribute and copies, checks and bounds them; a request has half a dozen spans and
thirty attributes, all ours, set from one thread at a time. Sampling, export and all that leaves the process are the
SDK's.
"""

import time
from collections.abc import Mapping
from random import getrandbits

from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    INVALID_SPAN_ID,
    INVALID_TRACE_ID,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

MAX_ATTRIBUTE_LENGTH = 1024  # characters

Attributes = dict[str, AttributeValue]
_SAMPLED, _NOT_SAMPLED = TraceFlags(TraceFlags.SAMPLED), TraceFlags(TraceFlags.DEFAULT)
_UNSET, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


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
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        at: int | None = None,
    ) -> Span:
        """Its parent is the span of `context`, by default the current one. `at`: its start, by default now."""
        parent = get_current_span(context).get_span_context()
        trace_id = parent.trace_id if parent.is_valid else _random(128, INVALID_TRACE_ID)
        sampled = trace_id & TraceIdRatioBased.TRACE_ID_LIMIT < self._sampled_below
        own = SpanContext(
            trace_id,
            _random(64, INVALID_SPAN_ID),
            is_remote=False,
            trace_flags=_SAMPLED if sampled else _NOT_SAMPLED,
            trace_state=parent.trace_state if parent.is_valid else None,
        )
        if not sampled:
            return NonRecordingSpan(own)
        return _Span(self._processor, self._resource, self._scope, name, own,
                     parent if parent.is_valid else None, kind, attributes or {}, at or time.time_ns())  # fmt: skip


class Current:
    """The span is the current one inside the block, and ends with it."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        self._token = attach(set_span_in_context(self._span))
        return self._span

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        detach(self._token)
        self._span.end()


class _Resource(Resource):
    """One for all spans. The SDK's is turned into JSON for its hash, once for each span that is sent."""

    def __hash__(self) -> int:
        return id(self)


class _Span(ReadableSpan, Span):
    """Written to as one span, and read by the exporter as the other."""

    def __init__(
        self,
        processor: SpanProcessor,
        resource: Resource,
        scope: InstrumentationScope,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        attributes: Attributes,
        started: int,
    ) -> None:
        self._values: Attributes = {}
        super().__init__(
            name, context, parent, resource, self._values, kind=kind, status=_UNSET, start_time=started,
            instrumentation_scope=scope,
        )  # fmt: skip
        self._own = context
        self._processor = processor
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

"""Spans that cost little to make: on the wire OpenTelemetry's, without what its SDK does for spans of any kind.

The SDK's span takes a lock for each attribute and copies, checks and bounds them; a request has a dozen spans and
thirty attributes, all ours, set from one thread at a time. What is sampled is what the SDK's `TraceIdRatioBased` would
sample.
"""

import asyncio
from collections.abc import Callable
from random import getrandbits
from time import time_ns

from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from backends.backend import BackendError
from gateway.errors import ApiError
from gateway.span_encoding import Attributes, encoded

INTERNAL, SERVER, CLIENT = (kind.value for kind in (SpanKind.INTERNAL, SpanKind.SERVER, SpanKind.CLIENT))


class Span:
    """A place in a trace of which nothing is recorded: it is sent to no collector, but others may be below it."""

    __slots__ = ("id", "trace")

    flags = 0  # of W3C trace context
    remote = False  # whether it was begun outside

    def __init__(self, trace: bytes, id: bytes) -> None:
        """16 and 8 bytes; both empty where nothing is traced at all."""
        self.trace = trace
        self.id = id

    @property
    def traceparent(self) -> str | None:
        """The W3C header that makes this span a parent elsewhere, if anything is traced."""
        return f"00-{self.trace.hex()}-{self.id.hex()}-{self.flags:02x}" if self.trace else None

    def is_recording(self) -> bool:
        return False

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """To be sent with it."""

    def set_attributes(self, attributes: Attributes) -> None:
        """As `set_attribute`."""

    def fail(self) -> None:
        """Its status is then that of an error; without a description, which might hold what a client has sent."""

    def end(self, at: int | None = None) -> None:
        """Only the first end counts. `at`: nanoseconds of POSIX time, by default now."""


class Outside(Span):
    """A client's."""

    __slots__ = ("flags",)

    remote = True

    def __init__(self, trace: bytes, id: bytes, flags: int) -> None:
        super().__init__(trace, id)
        self.flags = flags


NO_SPAN = Span(b"", b"")


class Recorded(Span):
    """One that is handed on when it ends, and does not change any more then."""

    __slots__ = ("_attributes", "_ended", "_failed", "_kind", "_name", "_parent", "_started", "_take")

    flags = 1

    def __init__(
        self,
        take: "Take",
        name: str,
        trace: bytes,
        parent: Span,
        kind: int,
        attributes: Attributes,
        started: int,
    ) -> None:
        self.trace = trace
        self.id = (getrandbits(64) or 1).to_bytes(8)
        self._take = take
        self._name = name
        self._parent = parent
        self._kind = kind
        self._attributes = attributes
        self._started = started
        self._ended = 0
        self._failed = False

    def is_recording(self) -> bool:
        return not self._ended

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        if not self._ended:
            self._attributes[key] = value

    def set_attributes(self, attributes: Attributes) -> None:
        if not self._ended:
            self._attributes.update(attributes)

    def fail(self) -> None:
        if not self._ended:
            self._failed = True

    def end(self, at: int | None = None) -> None:
        if not self._ended:
            self._ended = at or time_ns()
            self._take(self)

    def encoded(self) -> bytes:
        """See `gateway.span_encoding.encoded`; once it has ended."""
        place = self.trace, self.id, self._parent.id, self._parent.remote
        times = self._started, max(self._started, self._ended)  # clocks may be put back
        return encoded(self._name, self._kind, place, times, self._attributes, self._failed)


Take = Callable[[Recorded], None]


class Tracer:
    """Makes spans, and hands each to `take` when it ends. Times are in nanoseconds of POSIX time."""

    def __init__(self, take: Take, ratio: float) -> None:
        """`ratio`: the share of traces that are sampled; whether one is hangs on its id alone."""
        self._take = take
        self._sampled_below = TraceIdRatioBased(ratio).bound
        self._all = ratio == 1

    def start(
        self,
        name: str,
        parent: Span,
        *,
        kind: int = INTERNAL,
        attributes: Attributes | None = None,
        at: int | None = None,
    ) -> Span:
        """`parent`: may be `NO_SPAN`, which begins a trace. `kind`: a `SpanKind`'s value. `at`: by default now."""
        trace = parent.trace or (getrandbits(128) or 1).to_bytes(16)  # no id has only zeros
        if self._all or self._sampled(trace):
            told = {} if attributes is None else attributes
            return Recorded(self._take, name, trace, parent, kind, told, at or time_ns())
        return Span(trace, (getrandbits(64) or 1).to_bytes(8))

    def _sampled(self, trace: bytes) -> bool:
        return int.from_bytes(trace) & TraceIdRatioBased.TRACE_ID_LIMIT < self._sampled_below


def mark(span: Span, error: BaseException) -> None:
    """With what was raised, by code or type: a message may hold what the client has sent."""
    if isinstance(error, GeneratorExit | asyncio.CancelledError):
        return  # whoever asked is gone; nothing has failed
    known = error.code if isinstance(error, BackendError | ApiError) else None
    span.set_attribute("error.type", known or type(error).__name__)
    span.fail()

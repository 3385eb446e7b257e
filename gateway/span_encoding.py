"""A span as OTLP's bytes, in a fraction of the time that it takes to make an object of protobuf of it first.

Format: `Span` and `ResourceSpans` of opentelemetry-proto 1.x, trace/v1/trace.proto, in protobuf's wire format: of each
field its number and kind, then, where it has no fixed length, its length. Spans of ours have no events and no links,
and nobody else's trace state.
"""

import struct
from collections.abc import Sequence
from functools import cache, lru_cache

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext
from opentelemetry.util.types import AttributeValue

MAX_ATTRIBUTE_LENGTH = 1024  # characters

Attributes = dict[str, AttributeValue]
Place = tuple[bytes, bytes, bytes, bool]
"""Ids of trace, span and parent (empty where it has none), and whether the parent is of another process."""

# Of Span: numbers of fields with their kinds.
TRACE_ID, SPAN_ID, PARENT = b"\x0a\x10", b"\x12\x08", b"\x22\x08"
NAME, KIND, START, END, ATTRIBUTE = b"\x2a", b"\x30", b"\x39", b"\x41", b"\x4a"
STATUS, FLAGS = b"\x7a", b"\x85\x01"
# Of AnyValue.
TEXT, YES_NO, INTEGER, FRACTION, ARRAY = b"\x0a", b"\x10", b"\x18", b"\x21", b"\x2a"
WELL, WRONG = b"", b"\x18\x02"  # of Status: unset, and an error
KNOWN, REMOTE = 0x100, 0x200  # of flags: whether the parent is in another process is known, and that it is

SEEN = 1024  # names and attributes that are not encoded again

_times = struct.Struct("<BQBQ").pack
_fraction = struct.Struct("<d").pack


def encoded(
    name: str, kind: int, place: Place, times: tuple[int, int], attributes: Attributes, failed: bool
) -> bytes:
    """As one of the `spans` of a `ScopeSpans`. `kind`: a `SpanKind`'s value; `times`: its start and end, in nanoseconds
    of POSIX time; `failed`: whether its status is that of an error."""
    trace, id, parent, remote = place
    parts = [TRACE_ID, trace, SPAN_ID, id]
    if parent:
        parts += (PARENT, parent)
    parts += (_named(name, kind), _times(START[0], times[0], END[0], times[1]))
    for key, value in attributes.items():
        type_of_it = type(value)
        if type_of_it is float:
            parts.append(_before_fraction(key) + _fraction(value))  # few are alike
        elif type_of_it is list:
            parts.append(_array(key, tuple(value), tuple(map(type, value))))  # type: ignore[arg-type]
        else:
            parts.append(_attribute(key, value))
    parts.append(_ENDS[failed, remote])
    return _field(b"\x12", b"".join(parts))


class Frame:
    """What stands around the spans of one resource and scope in a message of OTLP."""

    def __init__(self, resource: Resource, scope: str) -> None:
        sample = ReadableSpan(
            "",
            context=SpanContext(1, 1, is_remote=False),
            resource=resource,
            instrumentation_scope=InstrumentationScope(scope),
            start_time=0,
            end_time=0,
        )
        (around,) = encode_spans([sample]).resource_spans
        (within,) = around.scope_spans
        self._resource = _field(b"\x0a", around.resource.SerializeToString())
        self._scope = _field(b"\x0a", within.scope.SerializeToString())
        self._scope_schema = _text(b"\x1a", within.schema_url)
        self._schema = _text(b"\x1a", around.schema_url)

    def around(self, spans: Sequence[bytes]) -> bytes:
        """An `ExportTraceServiceRequest`."""
        scoped = _field(b"\x12", b"".join([self._scope, *spans, self._scope_schema]))
        return _field(b"\x0a", self._resource + scoped + self._schema)


@lru_cache(SEEN)
def _named(name: str, kind: int) -> bytes:
    return _text(NAME, name) + KIND + _varint(kind + 1)


def _new_attribute(key: str, value: AttributeValue) -> bytes:
    return _field(ATTRIBUTE, _key(key) + _field(b"\x12", _value(value)))


# Most are of one tier, replica or tenant among few. By type, since 1 and True are equal.
_attribute = lru_cache(SEEN, typed=True)(_new_attribute)


@lru_cache(SEEN)
def _array(key: str, values: tuple[str | int, ...], types: tuple[type, ...]) -> bytes:
    return _new_attribute(key, values)


@cache
def _before_fraction(key: str) -> bytes:
    return _new_attribute(key, 0.0)[: -len(_fraction(0.0))]


def _value(value: AttributeValue) -> bytes:
    """An AnyValue. Integers are whole numbers of 64 bits, with or without a sign."""
    if isinstance(value, str):
        return _field(TEXT, value[:MAX_ATTRIBUTE_LENGTH].encode())
    if isinstance(value, bool):
        return YES_NO + _varint(value)
    if isinstance(value, int):
        return INTEGER + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return FRACTION + _fraction(value)
    if isinstance(value, Sequence):
        return _field(ARRAY, b"".join([_field(b"\x0a", _value(each)) for each in value]))
    raise TypeError(f"an attribute of a span cannot be a {type(value).__name__}")


@cache
def _key(key: str) -> bytes:
    """There are as many as this program has names for, and tiers and replicas in them."""
    return _field(b"\x0a", key.encode())


def _text(field: bytes, text: str) -> bytes:
    return _field(field, text.encode()) if text else b""


def _field(field: bytes, data: bytes) -> bytes:
    length = len(data)
    if length < 128:
        return field + _SHORT[length] + data
    if length < 128 * 128:
        return field + bytes((length & 127 | 128, length >> 7)) + data
    return field + _varint(length) + data


def _varint(number: int) -> bytes:
    """Seven bits in each byte, the lowest first, and in all but the last one the eighth."""
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


_SHORT = tuple(bytes([length]) for length in range(128))
_ENDS = {
    (failed, remote): _field(STATUS, WRONG if failed else WELL)
    + struct.pack("<2sI", FLAGS, KNOWN | REMOTE if remote else KNOWN)
    for failed in (False, True)
    for remote in (False, True)
}

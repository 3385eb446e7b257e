"""Our own spans, beside those of OpenTelemetry's SDK."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from backends.backend import Overloaded
from gateway.errors import ApiError
from gateway.span_encoding import MAX_ATTRIBUTE_LENGTH, Attributes
from gateway.spans import NO_SPAN, Outside, Recorded, Span, Tracer, mark

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ATTRIBUTES: Attributes = {
    "text": "x" * 2 * MAX_ATTRIBUTE_LENGTH,
    "share": 0.5,
    "whole": True,
    "reasons": ["stop", "length"],
    "count": 7,
}


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    yield exporter
    exporter.shutdown()


class Taken(list[Recorded]):
    """What was handed on."""

    @property
    def spans(self) -> list[Sent]:
        return list(ScopeSpans.FromString(b"".join(span.encoded() for span in self)).spans)


def theirs(exporter: InMemorySpanExporter) -> Any:
    provider = TracerProvider(span_limits=SpanLimits(max_attribute_length=MAX_ATTRIBUTE_LENGTH))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("headrace")


def outside() -> Span:
    trace, parent = (bytes.fromhex(id) for id in PARENT.split("-")[1:3])
    return Outside(trace, parent, 1)


def fill(span: Any, fail: Callable[[], object]) -> None:
    span.set_attributes(ATTRIBUTES)
    span.set_attribute("count", 8)
    fail()
    span.end(2_000)


def test_what_is_sent_is_what_the_sdk_would_send(exporter: InMemorySpanExporter) -> None:
    name, kind = "POST /v1/models", SpanKind.SERVER
    given: Attributes = {"http.route": "/v1/models"}
    context = TraceContextTextMapPropagator().extract({"traceparent": PARENT}, Context())
    span = theirs(exporter).start_span(name, context, kind, dict(given), start_time=1_000)
    fill(span, lambda: span.set_status(StatusCode.ERROR))
    [scope] = encode_spans(exporter.get_finished_spans()).resource_spans[0].scope_spans
    [expected] = scope.spans
    taken = Taken()
    ours = Tracer(taken.append, 1.0).start(name, outside(), kind=kind.value, attributes=given, at=1_000)
    fill(ours, ours.fail)
    [sent] = taken.spans
    assert len(sent.span_id) == len(expected.span_id) == 8
    sent.span_id = expected.span_id  # both were made by chance
    assert sent == expected
    assert sent.trace_id.hex() == PARENT.split("-")[1]


def test_a_span_below_another_is_of_its_trace() -> None:
    taken = Taken()
    tracer = Tracer(taken.append, 1.0)
    outer = tracer.start("outer", NO_SPAN)
    inner = tracer.start("inner", outer)
    inner.end()
    outer.end()
    sent, outermost = taken.spans
    assert not outermost.parent_span_id and sent.parent_span_id == outermost.span_id == outer.id
    assert sent.trace_id == outermost.trace_id == outer.trace
    assert 0 < outermost.start_time_unix_nano <= sent.start_time_unix_nano
    assert sent.end_time_unix_nano <= outermost.end_time_unix_nano
    assert outer.traceparent == f"00-{outer.trace.hex()}-{outer.id.hex()}-01"


def test_only_the_first_end_counts() -> None:
    taken = Taken()
    span = Tracer(taken.append, 1.0).start("once", NO_SPAN, at=4)
    assert span.is_recording()
    span.end(5)
    span.end(6)
    span.set_attribute("late", 1)
    span.fail()
    [ended] = taken.spans
    assert (ended.end_time_unix_nano, list(ended.attributes), span.is_recording()) == (5, [], False)
    assert ended.status.code == StatusCode.UNSET.value


def test_none_ends_before_it_began() -> None:
    """Its clock may be put back, and a collector takes the difference for a number without a sign."""
    taken = Taken()
    Tracer(taken.append, 1.0).start("once", NO_SPAN, at=5).end(3)
    [ended] = taken.spans
    assert ended.start_time_unix_nano == ended.end_time_unix_nano == 5


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ApiError(404, "what the client wrote", code="no_session"), "no_session"),
        (Overloaded("what the client wrote"), "server_is_overloaded"),
        (ValueError("what the client wrote"), "ValueError"),
        (GeneratorExit(), None),
    ],
)
def test_messages_of_exceptions_are_not_kept(error: BaseException, said: str | None) -> None:
    taken = Taken()
    span = Tracer(taken.append, 1.0).start("quiet", NO_SPAN)
    mark(span, error)
    span.end()
    [sent] = taken.spans
    assert [pair.value.string_value for pair in sent.attributes] == ([] if said is None else [said])
    assert sent.status.code == (StatusCode.UNSET if said is None else StatusCode.ERROR).value
    assert b"client" not in taken[0].encoded()


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_the_same_traces_are_sampled_as_by_the_sdk(ratio: float) -> None:
    taken, sampler = Taken(), TraceIdRatioBased(ratio)
    ours = Tracer(taken.append, ratio)
    for number in range(200):
        trace_id = number * (2**64 // 200) + 1
        span = ours.start("any", Outside(trace_id.to_bytes(16), b"parent..", 1))
        expected = sampler.should_sample(None, trace_id, "any").decision is Decision.RECORD_AND_SAMPLE
        assert span.is_recording() == expected
        assert span.traceparent == f"00-{trace_id:032x}-{span.id.hex()}-{expected:02x}"
        span.set_attribute("one", 1)
        span.fail()
        span.end()
    assert (len(taken) > 0) == (ratio > 0)


def test_where_nothing_is_traced_there_is_nothing_to_tell() -> None:
    assert NO_SPAN.traceparent is None and not NO_SPAN.is_recording()

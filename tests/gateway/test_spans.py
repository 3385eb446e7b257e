"""Our own spans, beside those of OpenTelemetry's SDK."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.spans import MAX_ATTRIBUTE_LENGTH, Attributes, Current, Tracer, current

RESOURCE = Resource.create({"service.name": "headrace"})
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


def tracer(exporter: InMemorySpanExporter, ratio: float = 1.0) -> Tracer:
    return Tracer(SimpleSpanProcessor(exporter), RESOURCE, "headrace", ratio)


def theirs(exporter: InMemorySpanExporter) -> Any:
    provider = TracerProvider(
        resource=RESOURCE, span_limits=SpanLimits(max_attribute_length=MAX_ATTRIBUTE_LENGTH)
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("headrace")


def outside(header: str = PARENT) -> Context:
    return TraceContextTextMapPropagator().extract({"traceparent": header}, Context())


def fill(span: Span) -> None:
    span.set_attributes(ATTRIBUTES)
    span.set_attribute("count", 8)
    span.set_status(StatusCode.ERROR)
    span.end(2_000)


def sent(exporter: InMemorySpanExporter) -> list[Sent]:
    """What would go over the wire, but for ids that are made by chance."""
    resources = encode_spans(exporter.get_finished_spans()).resource_spans
    exporter.clear()
    [scope] = [scope for resource in resources for scope in resource.scope_spans]
    assert scope.scope.name == "headrace"
    for span in scope.spans:
        assert len(span.span_id) == 8
        span.span_id = b""
    return list(scope.spans)


def test_what_is_sent_is_what_the_sdk_would_send(exporter: InMemorySpanExporter) -> None:
    name, kind = "POST /v1/models", SpanKind.SERVER
    given: Attributes = {"http.route": "/v1/models"}
    fill(theirs(exporter).start_span(name, outside(), kind, given, start_time=1_000))
    expected = sent(exporter)
    fill(
        tracer(exporter).start(
            name, parent=get_current_span(outside()), kind=kind, attributes=given, at=1_000
        )
    )
    assert sent(exporter) == expected
    assert expected[0].trace_id.hex() == PARENT.split("-")[1]


def test_the_current_span_is_the_parent(exporter: InMemorySpanExporter) -> None:
    ours = tracer(exporter)
    with Current(ours.start("outer")) as outer:
        assert current() is outer
        with Current(ours.start("inner")):
            pass
    assert not current().get_span_context().is_valid
    inner, outermost = exporter.get_finished_spans()
    assert outermost.parent is None and inner.parent == outermost.context
    assert inner.start_time and inner.end_time and inner.start_time <= inner.end_time


def test_only_the_first_end_counts(exporter: InMemorySpanExporter) -> None:
    span = tracer(exporter).start("once")
    assert span.is_recording()
    span.set_status(Status(StatusCode.OK))
    span.end(5)
    span.end(6)
    span.set_attribute("late", 1)
    span.set_status(StatusCode.ERROR)
    [ended] = exporter.get_finished_spans()
    assert (ended.end_time, dict(ended.attributes or {}), span.is_recording()) == (5, {}, False)
    assert ended.status.status_code is StatusCode.OK


def test_messages_of_exceptions_are_not_kept(exporter: InMemorySpanExporter) -> None:
    span = tracer(exporter).start("quiet")
    span.record_exception(ValueError("what the client wrote"))
    span.set_status(StatusCode.ERROR, "what the client wrote")
    span.end()
    assert "client" not in exporter.get_finished_spans()[0].to_json()


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_the_same_traces_are_sampled_as_by_the_sdk(exporter: InMemorySpanExporter, ratio: float) -> None:
    ours, sampler = tracer(exporter, ratio), TraceIdRatioBased(ratio)
    for number in range(200):
        trace_id = number * (2**64 // 200) + 1
        flags = TraceFlags(TraceFlags.SAMPLED)
        parent = NonRecordingSpan(SpanContext(trace_id, 1, is_remote=True, trace_flags=flags))
        span = ours.start("any", parent=parent)
        expected = sampler.should_sample(None, trace_id, "any").decision is Decision.RECORD_AND_SAMPLE
        assert span.is_recording() == span.get_span_context().trace_flags.sampled == expected
        span.end()
    assert (len(exporter.get_finished_spans()) > 0) == (ratio > 0)

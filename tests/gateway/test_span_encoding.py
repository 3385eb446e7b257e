"""Our encoding of spans beside that of OpenTelemetry's SDK, which makes protobuf's messages of them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
)

from gateway.config import Telemetry
from gateway.span_encoding import encoded
from gateway.spans import Tracer
from gateway.telemetry import Traces

texts = st.text(st.characters(codec="utf-8"), max_size=300)
scalars = texts | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
values = scalars | st.lists(texts, max_size=3) | st.lists(st.integers(-5, 5), max_size=3)
attributes = st.dictionaries(
    st.text(st.characters(codec="ascii"), min_size=1, max_size=140), values, max_size=5
)
states = st.sampled_from([None, TraceState([("vendor", "x"), ("other", "y")])])


class Kept(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def made(kept: Kept) -> Tracer:
    resource = Resource({"service.name": "gate", "n": 3}, "https://schema")
    return Tracer(kept, resource, "headrace", 1.0)


@given(
    st.lists(
        st.tuples(texts, attributes, st.sampled_from(SpanKind), st.booleans(), st.booleans(), states),
        max_size=4,
    )
)
def test_it_says_the_same(drawn: list[Any]) -> None:
    kept = Kept()
    tracer = made(kept)
    for name, said, kind, remote, wrong, state in drawn:
        parent = SpanContext(2**127 + 5, 7, remote, TraceFlags(1), state)
        above = NonRecordingSpan(parent) if len(name) % 2 else None
        span = tracer.start(name, parent=above, kind=kind, attributes=said, at=10)
        if wrong:
            span.set_status(StatusCode.ERROR)
        span.end(2**63)
    ours = ExportTraceServiceRequest.FromString(encoded(kept.spans).SerializeToString())
    assert ours == encode_spans(kept.spans)


def test_it_is_what_the_exporter_encodes_with() -> None:
    Traces(Telemetry(otlp_endpoint="http://127.0.0.1:9"))
    assert trace_exporter.encode_spans is encoded  # type: ignore[attr-defined]

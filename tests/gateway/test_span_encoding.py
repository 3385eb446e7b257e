"""Our encoding of spans beside that of OpenTelemetry's SDK, which makes protobuf's messages of them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gateway.span_encoding import Frame, encoded

RESOURCE = Resource({"service.name": "gate", "n": 3}, "https://schema")
TRACE, ID, PARENT = 2**127 + 5, 2**63 + 9, 7
texts = st.text(st.characters(codec="utf-8"), max_size=300)
scalars = texts | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
values = scalars | st.lists(texts, max_size=3) | st.lists(st.integers(-5, 5), max_size=3)
attributes = st.dictionaries(
    st.text(st.characters(codec="ascii"), min_size=1, max_size=140), values, max_size=5
)
spans = st.tuples(texts, attributes, st.sampled_from(SpanKind), st.booleans(), st.booleans(), st.booleans())


@given(st.lists(spans, min_size=1, max_size=4))
def test_it_says_the_same(drawn: list[Any]) -> None:
    ours, theirs = [], []
    for name, said, kind, below, remote, failed in drawn:
        parent = PARENT.to_bytes(8) if below else b""
        place = TRACE.to_bytes(16), ID.to_bytes(8), parent, below and remote
        ours.append(encoded(name, kind.value, place, (10, 2**63), said, failed))
        theirs.append(
            ReadableSpan(
                name,
                context=SpanContext(TRACE, ID, is_remote=False, trace_flags=TraceFlags(1)),
                parent=SpanContext(TRACE, PARENT, is_remote=remote) if below else None,
                resource=RESOURCE,
                attributes=said,
                kind=kind,
                status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
                start_time=10,
                end_time=2**63,
                instrumentation_scope=InstrumentationScope("headrace"),
            )
        )
    message = Frame(RESOURCE, "headrace").around(ours)
    assert ExportTraceServiceRequest.FromString(message) == encode_spans(theirs)

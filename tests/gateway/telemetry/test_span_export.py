"""Spans go out in large messages, the oldest are dropped, and a thread that failed once goes on."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext

from gateway import span_export
from gateway.config import Telemetry
from gateway.metrics import Metrics
from gateway.span_export import MAX_BATCH, MAX_QUEUE, SpanExport
from gateway.spans import NO_SPAN, Tracer


def opened(url: str, metrics: Metrics | None = None) -> tuple[SpanExport, Callable[[int], None]]:
    export = SpanExport(Telemetry(service_name="gate"), url, None if metrics is None else metrics.lost)
    tracer = Tracer(export.add, 1.0)

    def make(count: int) -> None:
        for number in range(count):
            tracer.start("span", NO_SPAN, attributes={"n": number}).end()

    return export, make


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_whole_batch_goes_out_at_once(collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "EXPORT_EVERY", 3600.0)
    export, make = opened(collector.url)
    make(MAX_BATCH + 1)
    until(lambda: len(collector.all_spans()) >= MAX_BATCH)
    make(1)
    export.close()
    told = [pair.value.int_value for span in collector.all_spans() for pair in span.attributes]
    assert told == [*range(MAX_BATCH + 1), 0]
    assert len(collector.bodies) <= 3


def test_few_spans_go_out_soon(collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "EXPORT_EVERY", 0.05)
    export, make = opened(collector.url)
    make(3)
    until(lambda: len(collector.all_spans()) == 3)
    export.close()


def test_the_oldest_are_dropped_and_the_operator_hears_of_it(
    collector: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SpanExport, "_run", lambda self: None)
    metrics = Metrics(["7b"], {}, [])
    export, make = opened(collector.url, metrics)
    make(MAX_QUEUE + 7)
    export._send()
    export.close()
    told = [pair.value.int_value for span in collector.all_spans() for pair in span.attributes]
    assert told == list(range(7, MAX_QUEUE + 7))
    assert "7 spans were dropped" in caplog.text
    lost = metrics.totals().by("headrace_spans_lost_total", "reason")
    assert lost == {("queue",): 7, ("collector",): 0}


@pytest.mark.parametrize("failure", [SpanExportResult.FAILURE, RuntimeError("a bug")])
def test_what_no_collector_has_taken_is_counted(
    monkeypatch: pytest.MonkeyPatch, failure: SpanExportResult | Exception
) -> None:
    def export(self: OTLPSpanExporter, spans: Any) -> SpanExportResult:
        if isinstance(failure, Exception):
            raise failure
        return failure

    monkeypatch.setattr(OTLPSpanExporter, "export", export)
    metrics = Metrics(["7b"], {}, [])
    sender, make = opened("http://127.0.0.1:1", metrics)
    make(3)
    sender.close()
    assert metrics.totals().of("headrace_spans_lost_total", reason="collector") == 3


def test_a_failure_of_the_exporter_does_not_end_it(collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "EXPORT_EVERY", 0.02)
    sent = OTLPSpanExporter.export
    failures = [RuntimeError("once")]

    def export_or_fail(self: OTLPSpanExporter, spans: Any) -> object:
        if failures:
            raise failures.pop()
        return sent(self, spans)

    monkeypatch.setattr(OTLPSpanExporter, "export", export_or_fail)
    export, make = opened(collector.url)
    make(1)
    until(lambda: not failures)
    make(2)
    export.close()
    assert len(collector.all_spans()) == 2


def test_the_sdk_s_own_spans_are_encoded_as_before(collector: Any) -> None:
    """Others in the same process may export theirs."""
    export, _ = opened(collector.url)
    export.close()
    context = SpanContext(1, 2, is_remote=False)
    [resource] = trace_exporter.encode_spans([ReadableSpan("other", context)]).resource_spans  # type: ignore[attr-defined]
    assert resource.scope_spans[0].spans[0].name == "other"

"""What nobody will be told of, since what should have held it was full, or there was nobody to take it."""

from prometheus_client import CollectorRegistry

from gateway.series import Counter

RECORDS = ("queue", "disk")  # why records are lost: too many wait, or they cannot be written
SPANS = ("queue", "collector")  # why spans are: too many wait, or the collector has not taken them


class LostMetrics:
    """From any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Every series is there at 0."""
        self._records = Counter(
            "headrace_records_lost",
            "Requests that are in no file of records.",
            ("reason",),
            registry=registry,
        )
        self._spans = Counter(
            "headrace_spans_lost",
            "Spans of traces that no collector has got.",
            ("reason",),
            registry=registry,
        )
        for series, reasons in ((self._records, RECORDS), (self._spans, SPANS)):
            for reason in reasons:
                series.labels(reason)

    def record(self, reason: str) -> None:
        """`reason`: one of RECORDS."""
        self._records.labels(reason).inc()

    def spans(self, count: int, reason: str) -> None:
        """`reason`: one of SPANS."""
        self._spans.labels(reason).inc(count)

"""Sends the `gen_ai.*` metrics to a collector by OTLP over HTTP, as they stand, every so often.

What is sent are the sums over all workers of the gateway, from the process that knows them all.
"""

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Metric as SentMetric
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import Metric

from gateway.config import Telemetry
from gateway.conventions import PROVIDER, attributes, in_prometheus
from gateway.genai_metrics import INSTRUMENTS, Instrument
from gateway.metrics import Metrics

EXPORT_TIMEOUT = 5.0  # seconds for one message, with its retries
FLUSH_TIMEOUT = 2.0  # seconds that stopping waits for a collector

Labels = tuple[tuple[str, str], ...]


class MetricsExport:
    """A thread of its own; a collector that hangs or is not there holds nobody up."""

    def __init__(
        self, service: str, endpoint: str, every: float, collect: Callable[[], Iterable[Metric]]
    ) -> None:
        """`collect`: all metrics as they are now, from any thread."""
        self._exporter = OTLPMetricExporter(f"{endpoint.rstrip('/')}/v1/metrics", timeout=EXPORT_TIMEOUT)
        self._resource = Resource.create({SERVICE_NAME: service, SERVICE_INSTANCE_ID: str(uuid.uuid4())})
        self._every = every
        self._collect = collect
        self._started = time.time_ns()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="export of metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send them once more, for `FLUSH_TIMEOUT` seconds at most. Idempotent."""
        self._stopping.set()
        self._thread.join(FLUSH_TIMEOUT)
        if self._thread.is_alive():
            self._exporter.shutdown()

    def _run(self) -> None:
        while not self._stopping.wait(self._every):
            self._send()
        self._send()
        self._exporter.shutdown()

    def _send(self) -> None:
        """What goes wrong is the exporter's to log."""
        sent = as_otlp(self._collect(), self._started, time.time_ns())
        if sent:
            scope = ScopeMetrics(InstrumentationScope(PROVIDER), sent, "")
            self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))


@asynccontextmanager
async def exported(telemetry: Telemetry, metrics: Metrics) -> AsyncIterator[None]:
    """Inside the block, where the configuration wants it."""
    endpoint, every = telemetry.otlp_endpoint, telemetry.otlp_metrics_every
    if endpoint is None or every is None:
        yield
        return
    export = MetricsExport(telemetry.service_name, endpoint, every, metrics.collect)
    try:
        yield
    finally:
        await asyncio.to_thread(export.close)


def as_otlp(metrics: Iterable[Metric], started: int, now: int) -> list[SentMetric]:
    """The `gen_ai.*` ones with something counted. Times in nanoseconds of POSIX time: counted since, and until."""
    names = attributes()
    known = {in_prometheus(made.name, made.unit): made for made in INSTRUMENTS}
    sent = []
    for metric in metrics:
        if (made := known.get(metric.name)) is None:
            continue
        labels = {in_prometheus(names[key]): names[key] for key in made.attributes}
        points = [_point(*counted, labels, made, started, now) for counted in _counted(metric).items()]
        points = [point for point in points if point.count]
        if points:
            data = Histogram(points, AggregationTemporality.CUMULATIVE)
            sent.append(SentMetric(made.name, made.text, made.unit, data))
    return sent


def _counted(metric: Metric) -> dict[Labels, dict[str, float]]:
    """By labels: `sum`, and under the end of each bucket how many are below it."""
    found: dict[Labels, dict[str, float]] = {}
    for sample in metric.samples:
        labels = tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))
        values = found.setdefault(labels, {})
        if sample.name.endswith("_bucket"):
            values[sample.labels["le"]] = sample.value
        elif sample.name.endswith("_sum"):
            values["sum"] = sample.value
    return found


def _point(
    labels: Labels,
    values: dict[str, float],
    names: Mapping[str, str],
    made: Instrument,
    started: int,
    now: int,
) -> HistogramDataPoint:
    total = values.pop("sum")
    below = [int(values[end]) for end in sorted(values, key=float)]
    return HistogramDataPoint(
        attributes={names[label]: value for label, value in labels if value},
        start_time_unix_nano=started,
        time_unix_nano=now,
        count=below[-1],
        sum=total,
        bucket_counts=[count - before for count, before in zip(below, [0, *below], strict=False)],
        explicit_bounds=made.buckets,
        min=None,  # type: ignore[arg-type]  # not known, and optional on the wire
        max=None,  # type: ignore[arg-type]
    )

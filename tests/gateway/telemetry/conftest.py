"""A collector of traces and metrics, on a real socket."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """What has arrived, as it came over the wire."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    metric_bodies: list[bytes] = field(default_factory=list)

    def spans(self) -> dict[str, Span]:
        return {span.name: span for span in self.all_spans()}

    def all_spans(self) -> list[Span]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [
            span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> dict[str, Metric]:
        """Of the last message, by name."""
        (resource,) = ExportMetricsServiceRequest.FromString(self.metric_bodies[-1]).resource_metrics
        return {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                collector.bodies.append(body)
            if self.path == "/v1/metrics":
                collector.metric_bodies.append(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    serving = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    serving.start()
    yield collector
    server.shutdown()
    server.server_close()

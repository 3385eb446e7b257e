"""Spans on their way to a collector, by OpenTelemetry's exporter: it has the endpoint, the retries and the timeouts.

Its batching is not used: it wakes a thread for every few hundred spans, and a message costs as much as many spans do.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from gateway.config import Telemetry
from gateway.conventions import PROVIDER
from gateway.lost_metrics import LostMetrics
from gateway.span_encoding import Frame

MAX_QUEUE = 8192  # spans waiting for the collector; the oldest are dropped beyond
MAX_BATCH = 2048
EXPORT_EVERY = 1.0  # seconds; a whole batch does not wait so long
EXPORT_TIMEOUT = 5.0  # seconds for one batch, with its retries
FLUSH_TIMEOUT = 2.0  # seconds that stopping waits for a collector

logger = logging.getLogger(__name__)


class SpanExport:
    """A thread of its own; a collector that hangs or is not there holds nobody up."""

    def __init__(self, config: Telemetry, endpoint: str, lost: LostMetrics | None = None) -> None:
        _take_what_is_encoded()
        self._exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_TIMEOUT)
        self._frame = Frame(Resource.create({SERVICE_NAME: config.service_name}), PROVIDER)
        self._spans: deque[bytes] = deque(maxlen=MAX_QUEUE)
        self._dropped = 0
        self._lost = lost
        self._waking = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="export of traces", daemon=True)
        self._thread.start()

    def add(self, span: bytes) -> None:
        """From one thread. `span`: see `gateway.span_encoding.encoded`."""
        waiting = len(self._spans)
        if waiting == MAX_QUEUE:
            self._dropped += 1
        self._spans.append(span)
        if waiting == MAX_BATCH:
            self._waking.set()

    def close(self) -> None:
        """Send what is left, for `FLUSH_TIMEOUT` seconds at most. Once."""
        self._closing = True
        self._waking.set()
        self._thread.join(FLUSH_TIMEOUT)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # it gives up what it still tries

    def _run(self) -> None:
        while not self._closing:
            self._waking.wait(EXPORT_EVERY)
            self._waking.clear()
            self._send()
        self._send()  # what came while the last was sent

    def _send(self) -> None:
        """What is there now."""
        left = len(self._spans)
        while left:
            batch = [self._spans.popleft() for _ in range(min(left, MAX_BATCH))]
            left -= len(batch)
            message: Any = _Message(self._frame.around(batch), len(batch))
            try:
                sent = self._exporter.export(message)  # it logs what goes wrong with the collector
            except Exception:
                sent = SpanExportResult.FAILURE
                logger.exception("traces: %d spans were not sent", len(batch))
            if sent is not SpanExportResult.SUCCESS:
                self._lose(len(batch), "collector")
        dropped, self._dropped = self._dropped, 0
        if dropped:
            self._lose(dropped, "queue")
            logger.warning("traces: %d spans were dropped, as the collector is too slow", dropped)

    def _lose(self, spans: int, reason: str) -> None:
        if self._lost is not None:
            self._lost.spans(spans, reason)


class _Message:
    """What the SDK's exporter takes for spans, and for the message of protobuf that is made of them."""

    def __init__(self, data: bytes, spans: int) -> None:
        self._data = data
        self._spans = spans

    def __len__(self) -> int:
        return self._spans

    def SerializePartialToString(self) -> bytes:
        return self._data


def _take_what_is_encoded() -> None:
    """The SDK's exporter has no place for an encoder of one's own. Once is enough."""
    encode: Any = trace_exporter.encode_spans  # type: ignore[attr-defined]
    if getattr(encode, "takes_messages", False):
        return

    def encode_spans(spans: "Sequence[ReadableSpan] | _Message") -> object:
        return spans if isinstance(spans, _Message) else encode(spans)

    encode_spans.takes_messages = True  # type: ignore[attr-defined]
    trace_exporter.encode_spans = encode_spans  # type: ignore[attr-defined, assignment]

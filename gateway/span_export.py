"""Spans on their way to a collector, by OpenTelemetry's exporter: it has the endpoint, the retries and the timeouts.

Its batching is not used: it wakes a thread for every few hundred spans, and a message costs as much as many spans do.
Many spans are encoded in one go, which takes a fraction of what it does between other work.
"""

import logging
import threading
import time
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
from gateway.spans import Recorded

MAX_QUEUE = 8192  # spans waiting for the collector; the oldest are dropped beyond
MAX_BATCH = 2048
AT_ONCE = 64  # spans; encoding them takes a fraction of a millisecond
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
        self._spans: deque[Recorded] = deque(maxlen=MAX_QUEUE)
        self._dropped = 0  # counted by who adds
        self._told = 0  # of them, by who sends: each thread writes to its own
        self._lost = lost
        self._waking = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="export of traces", daemon=True)
        self._thread.start()

    def add(self, span: Recorded) -> None:
        """One that has ended. From one thread."""
        if len(self._spans) >= MAX_BATCH:
            self._hurry()
        self._spans.append(span)

    def _hurry(self) -> None:
        if len(self._spans) == MAX_QUEUE:
            self._dropped += 1
        if not self._waking.is_set():
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
            count = min(left, MAX_BATCH)
            left -= count
            if not self._sent([self._spans.popleft() for _ in range(count)]):
                self._lose(count, "collector")
        dropped = self._dropped - self._told
        self._told += dropped
        if dropped:
            self._lose(dropped, "queue")
            logger.warning("traces: %d spans were dropped, as the collector is too slow", dropped)

    def _sent(self, spans: Sequence[Recorded]) -> bool:
        try:
            message: Any = _Message(self._frame.around(_encoded(spans)), len(spans))
            # It logs what goes wrong with the collector.
            return self._exporter.export(message) is SpanExportResult.SUCCESS
        except Exception:
            logger.exception("traces: %d spans were not sent", len(spans))
            return False

    def _lose(self, spans: int, reason: str) -> None:
        if self._lost is not None:
            self._lost.spans(spans, reason)


def _encoded(spans: Sequence[Recorded]) -> list[bytes]:
    """A few at a time: whoever computes in Python holds up the event loop."""
    encoded: list[bytes] = []
    for at in range(0, len(spans), AT_ONCE):
        encoded += [span.encoded() for span in spans[at : at + AT_ONCE]]
        time.sleep(0)  # lets the event loop go on, if it waits
    return encoded


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

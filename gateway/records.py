"""One JSON line per request in files of a folder, without content: for audits, and for replaying other policies.

A line has what the page shows of a request (`gateway.dashboard.record`, without its steps) and:

    v         version of this format, 1
    trace_id  of its trace, null where none is made
    order     the tiers of its route; shadows: what each shadow policy would have taken
    session   a digest of its session's id, null without one
    asked     for each prompt: a digest of it and its characters, messages and tools; what the client set

Digests are keyed with the server's secret: equal prompts are seen to be equal, but nobody can find out a prompt by
trying. A thread of its own encodes and writes; a disk that is full or slow costs records, never a request.
"""

import hmac
import logging
import os
import queue
import threading
import time
from asyncio import to_thread
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from gateway.config import Telemetry
from gateway.dashboard.record import Record, ended, record_of
from gateway.exchange import Exchange
from gateway.metrics import Metrics
from gateway.request import Request, Route

logger = logging.getLogger(__name__)

VERSION = 1
MAX_QUEUE = 4096  # requests that wait for the thread
REST = 5.0  # seconds in which nothing is tried after a write has failed
CLOSING = 2.0  # seconds that stopping waits for the disk
DAY = 24 * 3600.0
SUFFIX = ".jsonl"

_Item = tuple[Record, str | None, tuple[Request, ...], Route | None]


class Records:
    """`write` never blocks and never raises."""

    def __init__(
        self,
        folder: Path,
        secret: bytes,
        metrics: Metrics,
        *,
        file_bytes: int,
        keep_days: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: POSIX seconds."""
        self._secret = secret
        self._metrics = metrics
        self._files = _Files(folder, file_bytes, keep_days)
        self._clock = clock
        self._items: queue.Queue[_Item | None] = queue.Queue(MAX_QUEUE)
        self._failed_at = -REST  # by the clock
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)
        self._thread.start()

    def write(self, exchange: Exchange, trace_id: str | None) -> None:
        """Of an exchange that ends now."""
        route = None if exchange.answer is None else exchange.answer.route
        try:
            self._items.put_nowait((record_of(ended(exchange)), trace_id, exchange.requests, route))
        except queue.Full:
            self._metrics.lost.record("queue")

    async def close(self) -> None:
        """What waits is written, for `CLOSING` seconds at most. Idempotent."""
        await to_thread(self._close)

    def _close(self) -> None:
        deadline = time.monotonic() + CLOSING
        try:
            self._items.put(None, timeout=CLOSING)
        except queue.Full:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            try:
                self._write(item)
            except Exception:
                logger.exception("a record is lost")
                self._metrics.lost.record("disk")
        self._files.close()

    def _write(self, item: _Item) -> None:
        now = self._clock()
        if 0 <= now - self._failed_at < REST:  # less than nothing where the clock was put back
            self._metrics.lost.record("disk")
            return
        try:
            self._files.append(self._line(*item), now)
        except OSError as error:
            self._failed_at = now
            self._metrics.lost.record("disk")
            logger.error("records cannot be written: %s", error.strerror)

    def _line(
        self, record: Record, trace_id: str | None, requests: tuple[Request, ...], route: Route | None
    ) -> bytes:
        told = msgspec.structs.asdict(record)
        del told["steps"]
        session = requests[0].session if requests else None
        told |= {
            "v": VERSION,
            "trace_id": trace_id,
            "order": None if route is None else route.order,
            "shadows": {} if route is None else route.shadows,
            "session": None if session is None else self._digest("session", session.encode()),
            "asked": [self._asked(request, known=route is not None) for request in requests],
        }
        return msgspec.json.encode(told) + b"\n"

    def _asked(self, request: Request, *, known: bool) -> dict[str, Any]:
        """`known`: whether the model is one of ours, else its name is only what a client has typed."""
        prompt = request.prompt
        return {
            "prompt": self._digest("prompt", msgspec.msgpack.encode(prompt)),
            "characters": sum(prompt.lengths()),
            "messages": len(prompt.messages),
            "tools": len(prompt.tools),
            "model": request.model if known else None,
            "max_tokens": request.max_tokens,
            "n": request.n,
            "temperature": request.temperature,
            "traffic": request.traffic,
            "priority": request.priority,
        }

    def _digest(self, kind: str, data: bytes) -> str:
        return hmac.digest(self._secret, f"record-{kind}:".encode() + data, "sha256").hex()[:32]


def open_records(telemetry: Telemetry, secret: bytes, metrics: Metrics) -> Records | None:
    """None where the configuration wants none."""
    if telemetry.records is None:
        return None
    return Records(
        Path(telemetry.records),
        secret,
        metrics,
        file_bytes=telemetry.records_file_bytes,
        keep_days=telemetry.records_keep_days,
    )


class _Files:
    """`2030-01-31-PID-0.jsonl`, then `-1`: a process has files of its own, so that none writes into another's line."""

    def __init__(self, folder: Path, most: int, keep_days: int) -> None:
        self._folder = folder
        self._most = most
        self._keep = keep_days * DAY
        self._day = ""
        self._part = 0
        self._descriptor: int | None = None
        self._size = 0

    def append(self, line: bytes, now: float) -> None:
        """The whole line or nothing of it. Raises OSError; the next call begins afresh."""
        day = _day(now)
        if day != self._day or (self._size and self._size + len(line) > self._most):
            self._rotate(day, now)
        descriptor = self._opened()
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError(0, "the disk is full", "records")
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, self._size)
            self.close()
            raise
        self._size += len(line)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _rotate(self, day: str, now: float) -> None:
        self.close()
        self._part = self._part + 1 if day == self._day else 0
        if day != self._day:
            self._day = day
            self._forget(_day(now - self._keep))

    def _opened(self) -> int:
        """A file of an earlier process of the same id is gone on with."""
        if self._descriptor is None:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self._folder / f"{self._day}-{os.getpid()}-{self._part}{SUFFIX}"
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._size = os.fstat(self._descriptor).st_size
        return self._descriptor

    def _forget(self, before: str) -> None:
        for path in self._folder.glob(f"[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]-*{SUFFIX}"):
            if path.name < before:
                path.unlink(missing_ok=True)


def _day(now: float) -> str:
    """Of UTC, as the names of files begin."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()

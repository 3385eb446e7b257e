"""HTTP/1.1 for uvicorn, with deadlines for clients that do not go on.

uvicorn by itself waits for ever for the rest of a half-sent head, and for a client that does not read what it asked
for; a few hundred such connections cost their owner nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT = 10.0  # seconds from the first byte to the end of the head
WRITE_TIMEOUT = 60.0  # seconds in which a client takes next to nothing of what is waiting for it


class TimedH11Protocol(H11Protocol):
    """Closes a connection that was given time enough, with 408 where the client can still be told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = _Timer(self.loop, self._head_is_late)
        self._write = _Timer(self.loop, self._nobody_reads)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._head.start(HEAD_TIMEOUT)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._running:
            self._head.stop()
        else:
            self._head.start(HEAD_TIMEOUT)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write.start(WRITE_TIMEOUT)

    def resume_writing(self) -> None:
        self._write.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head.stop()
        self._write.stop()
        super().connection_lost(exc)

    @property
    def _running(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _head_is_late(self) -> None:
        if self._running or self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            response = h11.Response(
                status_code=408, headers=[("content-length", "0"), ("connection", "close")]
            )
            self.transport.write(self.conn.send(response) or b"")
        self.transport.close()

    def _nobody_reads(self) -> None:
        """The application hears of it as of any disconnect. Closing would wait for the client to read the rest."""
        self.transport.abort()


class _Timer:
    """One deadline at a time. Starting it again does not move it: a byte now and then buys no time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        if self._handle is None:
            self._handle = self._loop.call_later(seconds, self._expired)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _expired(self) -> None:
        self._handle = None
        self._expire()

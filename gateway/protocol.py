"""HTTP/1.1 for uvicorn, with a deadline for what comes before a request runs.

uvicorn by itself waits for ever for the rest of a half-sent head, and a few hundred such connections cost nothing to
keep open.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT = 10.0  # seconds from the first byte to the end of the head


class TimedH11Protocol(H11Protocol):
    """Closes a connection that was given time enough, with 408 where the client can still be told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._running:
            self._disarm()
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    @property
    def _running(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _arm(self) -> None:
        """Not again while it runs: a byte now and then buys no time."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if self._running or self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            response = h11.Response(
                status_code=408, headers=[("content-length", "0"), ("connection", "close")]
            )
            self.transport.write(self.conn.send(response) or b"")
        self.transport.close()

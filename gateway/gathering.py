"""Sending in one piece what is written in one turn of the event loop.

A system call, and waking the process at the other end, cost more than making an event. A head and its body, and deltas
that came at once, are written one by one; together they are one packet.
"""

import asyncio
from typing import Any

ENOUGH = 64 * 1024  # bytes; more are sent at once, so that whoever writes on and on is told to wait


class GatheringTransport:
    """Stands in for `transport` towards a protocol; writes wait for the end of the turn, everything else does not."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(data)
        self._size += len(data)
        if self._size >= ENOUGH:
            self.flush()

    def flush(self) -> None:
        """Do not wait for the end of the turn."""
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
            self._transport.write(data)

    def close(self) -> None:
        """What was written is sent before."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """What was not yet sent is lost."""
        self._pieces.clear()
        self._size = 0
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

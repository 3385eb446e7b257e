"""A collector of traces that reads what it is sent and says so: `python -m benchmarks.collector`.

It is a process of its own, since a stub that answers the load too would be slower at that for each batch it reads: then
tracing would be charged with what a collector costs.
"""

import asyncio
from typing import cast

import uvloop

TAKEN = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"
HEAD_END = b"\r\n\r\n"


class Reader(asyncio.Protocol):
    """Counts bytes, and keeps none but those of a head."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._left = 0  # bytes of a body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        while data:
            if not self._left:
                data = self._begin(data)
                continue
            taken = min(self._left, len(data))
            self._left -= taken
            data = data[taken:]
            if not self._left:
                self._transport.write(TAKEN)

    def _begin(self, data: bytes) -> bytes:
        """Reads on in a head; what is left of `data` is the body's."""
        self._head += data
        head, end, rest = bytes(self._head).partition(HEAD_END)
        if not end:
            return b""
        self._head.clear()
        self._left = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if not self._left:
            self._transport.write(TAKEN)
        return rest


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Reader, "127.0.0.1", 0)
    print(f"collector ready on {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())

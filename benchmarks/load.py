"""A client that costs little: one HTTP/1.1 connection over asyncio streams, timed at the first and the last byte."""

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from sending the request."""

    status: int
    first_byte: float
    whole: float


class Connection:
    """Keeps one connection open. Only what the gateway and the stub send is understood: chunked or with a length."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    async def post(self, path: str, body: bytes, key: str = "any") -> Timing:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        started = time.perf_counter()
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        first = time.perf_counter() - started
        lines = answer.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), None)
        if length is not None:
            await self._reader.readexactly(length)
        else:
            await self._skip_chunks()
        return Timing(int(answer[9:12]), first, time.perf_counter() - started)

    async def _skip_chunks(self) -> None:
        while size := int(await self._reader.readline(), 16):
            await self._reader.readexactly(size + 2)
        await self._reader.readexactly(2)

"""Clients that cost little, and the loads that they make."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from sending the request."""

    status: int
    first_byte: float
    whole: float
    last: bytes  # what was said at the end, the whole of an error

    @property
    def complete(self) -> bool:
        """Whether a stream had its [DONE]."""
        return b"[DONE]" in self.last


@dataclass(frozen=True, slots=True)
class Target:
    """Who is asked, and with what."""

    port: int
    body: bytes
    headers: str = ""  # lines, each with its line break


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

    async def post(self, target: Target) -> Timing:
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"{target.headers}content-length: {len(target.body)}\r\n\r\n"
        )
        started = time.perf_counter()
        self._writer.write(head.encode() + target.body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        first = time.perf_counter() - started
        lines = answer.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), None)
        if length is not None:
            last = await self._reader.readexactly(length)
        else:
            last = await self._skip_chunks()
        return Timing(int(answer[9:12]), first, time.perf_counter() - started, last)

    async def _skip_chunks(self) -> bytes:
        """The last two of them, since [DONE] may be the last or share one with what came before."""
        before, chunk = b"", b""
        while size := int(await self._reader.readline(), 16):
            before, chunk = chunk, await self._reader.readexactly(size + 2)
        await self._reader.readexactly(2)
        return before + chunk


async def sequential(target: Target, count: int) -> list[float]:
    """Seconds to the last byte of requests that follow one another."""
    async with Connection(target.port) as connection:
        return [(await _ask(connection, target)).whole for _ in range(count)]


async def closed_loop(target: Target, clients: int, seconds: float) -> float:
    """Requests per second of clients that each send the next request when the last one is answered."""
    ended, end = 0, time.perf_counter() + seconds

    async def client() -> None:
        nonlocal ended
        async with Connection(target.port) as connection:
            while time.perf_counter() < end:
                await _ask(connection, target)
                ended += 1

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return ended / (time.perf_counter() - started)


async def open_loop(target: Target, rate: float, seconds: float, warm: float = 0.0) -> list[float]:
    """Seconds to the last byte of requests that come at `rate` per second, whether or not the others are answered.

    Those of the first `warm` seconds, which come before the others, open connections and do not count.
    """
    idle: list[Connection] = []
    times: list[float] = []

    async def one(due: float) -> None:
        connection = idle.pop() if idle else await Connection(target.port).__aenter__()
        await _ask(connection, target)
        if due >= counted:
            times.append(loop.time() - due)  # from when it was due, so that a late sender hides nothing
        idle.append(connection)

    loop = asyncio.get_running_loop()
    counted = loop.time() + warm
    await every(1 / rate, round(rate * (warm + seconds)), one)
    for connection in idle:
        await connection.__aexit__(None, None, None)
    return times


async def every(interval: float, count: int, work: Callable[[float], Awaitable[None]]) -> None:
    """Start `work` once per interval, each told when it was due; returns when all have ended."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            due = started + number * interval
            await asyncio.sleep(max(0.0, due - loop.time()))
            group.create_task(_awaited(work(due)))


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def _ask(connection: Connection, target: Target) -> Timing:
    timing = await connection.post(target)
    if timing.status != 200:
        said = timing.last.decode(errors="replace")
        raise RuntimeError(f"port {target.port} answered with status {timing.status}: {said}")
    return timing

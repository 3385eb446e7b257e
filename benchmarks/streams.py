"""Thousands of streams at once through one gateway: all must complete, and what memory each of them takes.

The stub says 20 words to each, spread over a minute. Ends with status 1 where a stream is cut or refused.
"""

import asyncio
import os
import re
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import cast

import uvloop

from benchmarks import programs
from benchmarks.gateway import CHUNKS, KEY, body, config
from benchmarks.load import PATH
from benchmarks.programs import Program
from benchmarks.report import Report, Row, arguments, machine, publish

STREAMS, LENGTH = 5000, 60.0  # seconds that each takes
QUICK_STREAMS, QUICK_LENGTH = 500, 10.0
RAMP = 500  # streams that begin in a second, where the machine can make as many
CONNECTING = (
    100  # at once: a connection that says nothing for long, as its client has no time for it, is closed
)
ENOUGH_MEMORY = 100 * 1024  # bytes a stream may take
HEAD = (
    f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    "authorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n"
)
CODE = re.compile(rb'"code":"(\w+)"')
# How an answer begins and ends that is complete: a cut one has no end.
FINE, END = (b"HTTP/1.1 200", b"0\r\n\r\n")


@dataclass
class Seen:
    complete: int = 0
    most_memory: int = 0
    slowest: float = 0.0
    connecting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONNECTING))
    failed: Counter[str] = field(default_factory=Counter)  # why, and how many


class Stream(asyncio.Protocol):
    """Asks as soon as it is connected, and looks for the end in what comes; thousands of these are no work.

    `ended` gets why it failed, None where it is complete.
    """

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._head = b""
        self._tail = b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._head = self._head or data[: len(FINE)]
        self._tail = (self._tail + data)[-len(END) :]
        if self._head != FINE:
            code = CODE.search(data)
            self._end(f"answered {data[9:12].decode()} {'' if code is None else code[1].decode()}")
        elif self._tail == END:
            self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        when = "in the stream" if self._head else "before an answer"
        self._end(f"{'closed' if error is None else type(error).__name__} {when}")

    def _end(self, why: str | None) -> None:
        if not self.ended.done():
            self.ended.set_result(why)


async def stream(port: int, request: bytes, seen: Seen, after: float) -> None:
    await asyncio.sleep(after)
    loop = asyncio.get_running_loop()
    try:
        async with seen.connecting:
            transport, asking = await loop.create_connection(lambda: Stream(request), "127.0.0.1", port)
    except OSError as error:
        seen.failed[f"{type(error).__name__} at connecting"] += 1
        return
    started = time.perf_counter()
    why = await asking.ended
    transport.close()
    seen.slowest = max(seen.slowest, time.perf_counter() - started)
    if why is None:
        seen.complete += 1
    else:
        seen.failed[why] += 1


async def watch(gateway: Program, seen: Seen) -> None:
    while True:
        seen.most_memory = max(seen.most_memory, gateway.memory)
        await asyncio.sleep(0.5)


async def run(gateway: Program, streams: int, length: float) -> Seen:
    seen = Seen()
    asked = body(CHUNKS, pace=length / CHUNKS)
    request = HEAD.format(key=KEY, length=len(asked)).encode() + asked
    await stream(gateway.port, request, Seen(), 0.0)
    before = gateway.memory
    watching = asyncio.create_task(watch(gateway, seen))
    await asyncio.gather(*(stream(gateway.port, request, seen, number / RAMP) for number in range(streams)))
    watching.cancel()
    seen.most_memory -= before
    return seen


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    streams, length = (QUICK_STREAMS, QUICK_LENGTH) if options.quick else (STREAMS, LENGTH)
    os.sched_setaffinity(0, programs.OTHERS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Children too; each stream has two ends in the gateway.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with programs.stub() as stub, programs.headrace(config(stub.port)) as gateway:
        before, started = gateway.cpu, time.perf_counter()
        seen = uvloop.run(run(gateway, streams, length))
        busy = (gateway.cpu - before) / (time.perf_counter() - started)
    each = seen.most_memory / streams
    rows = [
        Row(
            case="streams complete", ours=seen.complete, peer=streams, peer_name="all of them", unit="streams",
            ratio=seen.complete / streams, details=dict(seen.failed),
        ),
        Row(
            case="memory per stream", ours=each / 1024, peer=ENOUGH_MEMORY / 1024, peer_name="what is enough",
            unit="KiB", ratio=ENOUGH_MEMORY / each, details={"share of a core": round(busy, 2)},
        ),
        Row(
            case="slowest stream", ours=seen.slowest, peer=length, peer_name="the stub's own time", unit="s",
            ratio=length / seen.slowest,
        ),
    ]  # fmt: skip
    publish(Report(name="streams", machine=machine(), rows=rows), options.json)
    return 0 if seen.complete == streams else 1


if __name__ == "__main__":
    sys.exit(main())

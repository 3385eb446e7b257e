"""Thousands of streams at once through one gateway: all must complete, and what memory each of them takes.

The stub says 20 words to each, spread over a minute. Ends with status 1 where a stream is cut or refused.
"""

import asyncio
import os
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from benchmarks import programs
from benchmarks.gateway import CHUNKS, KEY, body, config
from benchmarks.load import Connection, Target
from benchmarks.programs import Program
from benchmarks.report import Report, Row, arguments, machine, publish

STREAMS, LENGTH = 5000, 60.0  # seconds that each takes
QUICK_STREAMS, QUICK_LENGTH = 500, 10.0
RAMP = 500  # streams that begin in a second
ENOUGH_MEMORY = 100 * 1024  # bytes a stream may take


@dataclass
class Seen:
    complete: int = 0
    most_memory: int = 0
    slowest: float = 0.0
    failed: Counter[str] = field(default_factory=Counter)  # why, and how many


async def stream(target: Target, seen: Seen, after: float) -> None:
    await asyncio.sleep(after)
    try:
        async with Connection(target.port) as connection:
            timing = await connection.post(target)
    except (OSError, asyncio.IncompleteReadError) as error:
        seen.failed[type(error).__name__] += 1
        return
    seen.slowest = max(seen.slowest, timing.whole)
    if timing.status == 200 and timing.complete:
        seen.complete += 1
    else:
        seen.failed["cut" if timing.status == 200 else f"status {timing.status}"] += 1


async def watch(gateway: Program, seen: Seen) -> None:
    while True:
        seen.most_memory = max(seen.most_memory, gateway.memory)
        await asyncio.sleep(0.5)


async def run(gateway: Program, streams: int, length: float) -> Seen:
    seen = Seen()
    headers = f"authorization: Bearer {KEY}\r\n"
    target = Target(gateway.port, body(CHUNKS, pace=length / CHUNKS), headers)
    await stream(target, Seen(), 0.0)
    before = gateway.memory
    watching = asyncio.create_task(watch(gateway, seen))
    await asyncio.gather(*(stream(target, seen, number / RAMP) for number in range(streams)))
    watching.cancel()
    seen.most_memory -= before
    return seen


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    streams, length = (QUICK_STREAMS, QUICK_LENGTH) if options.quick else (STREAMS, LENGTH)
    os.sched_setaffinity(0, programs.OTHERS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most, most)
    )  # children too; each stream has two ends in the gateway
    with programs.stub() as stub, programs.headrace(config(stub.port)) as gateway:
        before, started = gateway.cpu, time.perf_counter()
        seen = asyncio.run(run(gateway, streams, length))
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

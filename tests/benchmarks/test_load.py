"""What the clients of the benchmarks measure, against their own stub."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from benchmarks import stub
from benchmarks.load import Target, open_loop


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    server = await asyncio.start_server(stub.handle, "127.0.0.1", 0)
    body = msgspec.json.encode({"max_tokens": 2, "seed": stub.seed_for(0.02)})
    async with server:
        yield Target(server.sockets[0].getsockname()[1], body)


async def test_every_request_of_an_open_loop_is_timed_but_those_that_warm_it_up(target: Target) -> None:
    times = await open_loop(target, rate=100.0, seconds=0.3, warm=0.1)
    assert 29 <= len(times) <= 31
    assert min(times) >= 0.02

"""A Redis some way off: each answer takes a while, and making a connection takes several of them."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from gateway.config import Limits, State
from gateway.limits import NOTHING, LimitStoreUnavailable
from gateway.state import open_stores
from sessions.connection import connect
from sessions.retention import always

if TYPE_CHECKING:
    from tests.conformance.conftest import RedisServer

WAY = 0.01  # seconds; a connection takes two answers or more, and who is in a hurry waits for 48 ms


class Road:
    """Between a client and a server, with `WAY` in each direction."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.made = 0  # connections
        self._ends: list[asyncio.StreamWriter] = []

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends += (back, writer)
        await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

    async def close(self) -> None:
        for end in self._ends:
            end.close()
        await asyncio.gather(*(end.wait_closed() for end in self._ends), return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await reader.read(65536):
                loop.call_later(WAY, writer.write, data)
        except ConnectionError:
            pass  # as good as an end
        loop.call_later(WAY, writer.close)


@pytest.fixture
async def road(redis: "RedisServer") -> AsyncIterator[tuple[Road, str]]:
    road = Road(redis.port)
    async with await asyncio.start_server(road.take, "127.0.0.1", 0) as server:
        yield road, f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        await road.close()


async def test_it_is_used_though_nobody_waits_for_a_connection(road: tuple[Road, str]) -> None:
    """Each request used to make one anew and to give it up, for ever."""
    _, url = road
    stores = open_stores(State(redis=url), always(60.0))
    stores.greet()
    answered = 0
    async with asyncio.timeout(60):
        while answered < 5:
            try:
                await stores.limits.reserve("acme", Limits(requests_per_minute=10**9), f"{answered}", NOTHING)
                answered += 1
            except LimitStoreUnavailable:
                await asyncio.sleep(0.05)
    await stores.close()


async def test_the_next_one_has_the_connection_that_was_given_up(road: tuple[Road, str]) -> None:
    client = connect(road[1], None)
    for _ in range(2):
        asking = asyncio.ensure_future(client.get("x"))
        await asyncio.sleep(WAY)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    await asyncio.sleep(20 * WAY)
    assert await client.get("x") is None
    assert road[0].made <= 2
    await client.aclose()


async def test_one_that_is_being_made_goes_with_the_pool(road: tuple[Road, str]) -> None:
    client = connect(road[1], None)
    before = asyncio.all_tasks()
    asking = asyncio.ensure_future(client.get("x"))
    await asyncio.sleep(WAY)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await client.aclose()
    left = {task for task in asyncio.all_tasks() - before if "get_connection" in repr(task)}
    assert not left

"""A Redis that takes fewer connections than we would make: questions wait for those there are."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from gateway.config import Limits, State
from gateway.limits import Amount
from gateway.state import Stores, open_stores
from sessions import SessionStoreUnavailable, Turn
from sessions.connection import SCARCE, connect
from sessions.redis import RedisSessions
from sessions.retention import always

if TYPE_CHECKING:
    from tests.conformance.conftest import RedisServer

FEW = 6  # connections
MANY = 60  # callers
LIMITS = Limits(requests_per_minute=100_000, parallel=1000)
TURN = Turn("user", "hello")
TOLD = "no further connection can be made"


async def talk(stores: Stores, number: int) -> None:
    reservation = await stores.limits.reserve("acme", LIMITS, f"lease {number}", Amount())
    session = await stores.sessions.create("acme")
    await stores.sessions.append("acme", session.id, (TURN,), 0)
    assert len((await stores.sessions.get("acme", session.id)).turns) == 1
    await stores.documents.put("acme", f"resp_{number}", b"{}")
    assert await stores.documents.get("acme", f"resp_{number}") == b"{}"
    await stores.limits.settle(reservation, LIMITS, Amount())


@pytest.fixture
def operator(mortal_redis: "RedisServer") -> Iterator[Callable[[str], str]]:
    """Asks over a connection that is there already, whoever else gets none."""
    with socket.create_connection(("127.0.0.1", mortal_redis.port)) as asking:

        def ask(command: str) -> str:
            asking.sendall(f"{command}\r\n".encode())
            return asking.recv(4096).decode()

        yield ask


async def test_questions_wait_for_the_connections_there_are(
    mortal_redis: "RedisServer", operator: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    operator(f"CONFIG SET maxclients {FEW}")
    stores = open_stores(State(redis=mortal_redis.url), always(3600))
    stores.greet()
    await talk(stores, -1)
    for _ in range(3):
        await asyncio.gather(*(talk(stores, number) for number in range(MANY)))
    assert caplog.text.count(TOLD) == 1  # not for every connection
    operator("CONFIG SET maxclients 1000")
    await asyncio.sleep(SCARCE + 0.1)
    await asyncio.gather(*(talk(stores, number) for number in range(MANY)))
    assert int(operator("INFO clients").split("connected_clients:")[1].split()[0]) > FEW
    await stores.close()


async def test_who_has_no_connection_and_gets_none_is_told_at_once(
    mortal_redis: "RedisServer", operator: Callable[[str], str]
) -> None:
    operator("CONFIG SET maxclients 1")
    sessions = RedisSessions(connect(mortal_redis.url, None), always(3600))
    async with asyncio.timeout(10):
        with pytest.raises(SessionStoreUnavailable):
            await sessions.create("acme")
        operator("CONFIG SET maxclients 2")
        assert (await sessions.create("acme")).turns == ()
    await sessions.close()


async def test_a_server_that_comes_back_finds_nobody_waiting_for_long(
    mortal_redis: "RedisServer", caplog: pytest.LogCaptureFixture
) -> None:
    """What was connected when it died seems to be for a while."""
    caplog.set_level(logging.WARNING)
    sessions = RedisSessions(connect(mortal_redis.url, None), always(3600))
    await asyncio.gather(*(sessions.create("acme") for _ in range(MANY)))
    mortal_redis.kill()
    async with asyncio.timeout(10):
        for _ in range(5):
            found = await asyncio.gather(
                *(sessions.create("acme") for _ in range(MANY)), return_exceptions=True
            )
            assert {type(each) for each in found} == {SessionStoreUnavailable}
        mortal_redis.start()
        await asyncio.sleep(SCARCE)
        await asyncio.gather(*(sessions.create("acme") for _ in range(2 * MANY)))
    await sessions.close()

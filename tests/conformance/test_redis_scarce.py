"""A Redis that takes fewer connections than we would make: questions wait for those there are."""

import asyncio
import logging
import os
import random
import resource
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from gateway.config import Limits, State
from gateway.limits import Amount, LimitStoreUnavailable
from gateway.state import Stores, open_stores
from sessions import SessionStoreUnavailable, Turn
from sessions.connection import connect
from sessions.pool import SCARCE
from sessions.redis import RedisSessions
from sessions.retention import always

if TYPE_CHECKING:
    from tests.conformance.conftest import RedisServer

FEW = 6  # connections
MANY = 60  # callers
LIMITS = Limits(requests_per_minute=100_000, parallel=1000)
ADDED = 0.06  # seconds that a request may wait in vain
SLACK = 1.0  # seconds that a busy machine may add
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
            return asking.recv(65536).decode()

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


def counted(operator: Callable[[str], str], section: str, name: str) -> int:
    return int(operator(f"INFO {section}").split(f"{name}:")[1].split()[0])


async def test_a_burst_finds_out_together_how_many_there_are(
    mortal_redis: "RedisServer", operator: Callable[[str], str]
) -> None:
    """Who is refused hears of it before those who are taken have made theirs: they are waited for all the same."""
    operator(f"CONFIG SET maxclients {FEW}")
    for _ in range(5):
        sessions = RedisSessions(connect(mortal_redis.url, None), always(3600))
        async with asyncio.timeout(10):
            await asyncio.gather(*(sessions.create("acme") for _ in range(MANY)))
        await sessions.close()
        async with asyncio.timeout(10):
            while counted(operator, "clients", "connected_clients") > 1:
                await asyncio.sleep(0.01)


async def test_what_is_known_to_be_refused_is_tried_once_in_a_while(
    mortal_redis: "RedisServer", operator: Callable[[str], str]
) -> None:
    """Each place of the pool used to be tried again every second, by a request that stood at the end again then."""
    operator(f"CONFIG SET maxclients {FEW}")
    sessions = RedisSessions(connect(mortal_redis.url, None), always(3600))
    await asyncio.gather(*(sessions.create("acme") for _ in range(MANY)))
    before, started = counted(operator, "stats", "rejected_connections"), time.monotonic()
    while time.monotonic() - started < 2.5 * SCARCE:
        await asyncio.gather(*(sessions.create("acme") for _ in range(MANY)))
    tried = counted(operator, "stats", "rejected_connections") - before
    assert 1 <= tried <= (time.monotonic() - started) / SCARCE + 1
    await sessions.close()


async def test_connections_that_break_and_callers_who_leave_keep_no_place(
    mortal_redis: "RedisServer", operator: Callable[[str], str]
) -> None:
    operator(f"CONFIG SET maxclients {FEW}")
    sessions = RedisSessions(connect(mortal_redis.url, None), always(3600))
    choice = random.Random(3)
    await sessions.create("acme")
    for _ in range(40):
        callers = [asyncio.create_task(sessions.create("acme")) for _ in range(MANY)]
        await asyncio.sleep(choice.random() * 0.02)
        for caller in choice.sample(callers, MANY // 2):
            caller.cancel()
        if choice.random() < 0.5:
            operator("CLIENT KILL TYPE normal SKIPME yes")
        await asyncio.gather(*callers, return_exceptions=True)
    async with asyncio.timeout(10):
        await asyncio.gather(*(sessions.create("acme") for _ in range(10 * MANY)))
        while counted(operator, "clients", "connected_clients") < FEW:  # all that there are, again
            await asyncio.gather(*(sessions.create("acme") for _ in range(MANY)))
            await asyncio.sleep(0.05)
    await sessions.close()


async def test_who_waits_for_a_frozen_one_waits_no_longer_than_without(
    mortal_redis: "RedisServer", operator: Callable[[str], str]
) -> None:
    operator(f"CONFIG SET maxclients {FEW}")
    stores = open_stores(State(redis=mortal_redis.url), always(3600))
    stores.greet()
    await talk(stores, -1)
    await asyncio.gather(*(talk(stores, number) for number in range(MANY)))
    mortal_redis.freeze()
    started = time.monotonic()
    asked = (stores.limits.reserve("acme", LIMITS, f"frozen {number}", Amount()) for number in range(MANY))
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert time.monotonic() - started < ADDED + SLACK
    assert {isinstance(each, LimitStoreUnavailable) for each in found} == {True}
    mortal_redis.thaw()
    async with asyncio.timeout(10):
        while True:
            try:
                await talk(stores, MANY)
                break
            except (LimitStoreUnavailable, SessionStoreUnavailable):
                await asyncio.sleep(0.05)
    await stores.close()


async def test_a_process_without_files_left_makes_do_with_what_it_has(
    mortal_redis: "RedisServer", caplog: pytest.LogCaptureFixture
) -> None:
    sessions = RedisSessions(connect(mortal_redis.url, None), always(3600))
    await sessions.create("acme")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir("/proc/self/fd")))
    free = [number for number in range(before[0]) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[FEW], before[1]))
    try:
        async with asyncio.timeout(10):
            await asyncio.gather(*(sessions.create("acme") for _ in range(MANY)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert TOLD in caplog.text
    await sessions.close()


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

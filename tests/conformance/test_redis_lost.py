"""Connections to Redis that are lost under a question: what was asked is done once, and answered."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gateway.config import Budget, Limits, State, Tenant
from gateway.errors import ApiError
from gateway.limits import NOTHING, Amount, LimitStoreUnavailable
from gateway.limits_guard import GuardedLimits
from gateway.limits_memory import MemoryLimits
from gateway.limits_redis import RedisLimits
from gateway.metering import Meter
from gateway.metrics import Metrics
from gateway.state import open_stores
from sessions import SessionStoreUnavailable, Turn
from sessions.connection import connect
from sessions.documents_redis import RedisDocuments
from sessions.redis import RedisSessions
from sessions.retention import always

if TYPE_CHECKING:
    from tests.conformance.conftest import RedisServer

PATIENT = 10.0
ALLOWED = Limits(requests_per_minute=100, tokens_per_minute=1000, parallel=2)


class Forgetful:
    """Between a client and a server: the next `losses` answers are lost, each with its connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.losses = 0

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._carry(reader, back, False), self._carry(there, writer, True))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        try:
            while data := await reader.read(65536):
                if answers and self.losses:
                    self.losses -= 1
                    break
                writer.write(data)
        except ConnectionError:
            pass  # as good as an end
        writer.close()


@pytest.fixture
async def forgetful(redis: "RedisServer") -> AsyncIterator[tuple[Forgetful, str]]:
    between = Forgetful(redis.port)
    async with await asyncio.start_server(between.take, "127.0.0.1", 0) as server:
        yield between, f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"


async def test_a_reservation_is_taken_once_and_says_what_is_left(forgetful: tuple[Forgetful, str]) -> None:
    between, url = forgetful
    clock = 1_800_000_000.0
    limits = RedisLimits(connect(url, PATIENT), lambda: clock)
    asked, used = Amount(tokens=300), Amount(tokens=100)
    first = await limits.reserve("acme", ALLOWED, "a", asked)
    between.losses = 1
    second = await limits.reserve("acme", ALLOWED, "b", asked)
    assert between.losses == 0
    for reservation, requests, tokens in ((first, 99, 700), (second, 98, 400)):
        assert reservation.left["requests"].remaining == requests
        assert reservation.left["tokens"].remaining == tokens
    between.losses = 1
    await limits.settle(second, ALLOWED, used)
    assert between.losses == 0
    assert (await limits.look("acme", ALLOWED))["tokens"].remaining == 600
    await limits.reserve("acme", ALLOWED, "c", asked)  # one of two at a time is free again
    await limits.close()


async def test_sessions_and_documents_are_made_once(forgetful: tuple[Forgetful, str]) -> None:
    between, url = forgetful
    sessions = RedisSessions(connect(url, PATIENT), always(60.0))
    documents = RedisDocuments(connect(url, PATIENT), always(60.0))
    await sessions.create("acme")
    assert await documents.get("acme", "resp_0") is None

    async def lossy(attempt: Callable[[], Awaitable[object]]) -> object:
        between.losses = 1
        found = await attempt()
        assert between.losses == 0
        return found

    await lossy(lambda: sessions.create("acme", "f" * 32))
    said = (Turn("user", "Hello"),)
    await sessions.append("acme", "f" * 32, said, 0)
    found = await lossy(lambda: sessions.get("acme", "f" * 32))
    assert found == await sessions.get("acme", "f" * 32)
    await lossy(lambda: sessions.replace("acme", "f" * 32, 0, said[0], Turn("user", "Bye")))
    assert (await sessions.get("acme", "f" * 32)).turns == (Turn("user", "Bye"),)
    await lossy(lambda: documents.put("acme", "resp_1", b"words"))
    await lossy(lambda: documents.touch("acme", "resp_1"))
    assert await lossy(lambda: documents.get("acme", "resp_1")) == b"words"
    await sessions.close()
    await documents.close()


async def test_turns_are_not_appended_twice(forgetful: tuple[Forgetful, str]) -> None:
    """Nobody could tell them from those of somebody who said the same at the same time; who wrote them finds out."""
    between, url = forgetful
    sessions = RedisSessions(connect(url, PATIENT), always(60.0))
    session = await sessions.create("acme")
    between.losses = 1
    with pytest.raises(SessionStoreUnavailable):
        await sessions.append("acme", session.id, (Turn("user", "Hello"),), 0)
    assert (await sessions.get("acme", session.id)).turns == (Turn("user", "Hello"),)
    await sessions.close()


async def test_two_losses_in_a_row_are_an_outage(forgetful: tuple[Forgetful, str]) -> None:
    between, url = forgetful
    limits = RedisLimits(connect(url, PATIENT))
    await limits.reserve("acme", ALLOWED, "a", Amount())
    between.losses = 1000
    with pytest.raises(LimitStoreUnavailable):
        await limits.reserve("acme", ALLOWED, "b", Amount())
    assert between.losses <= 998
    await limits.close()


async def test_a_request_that_was_refused_for_lost_answers_costs_nothing(
    forgetful: tuple[Forgetful, str],
) -> None:
    between, url = forgetful
    limits, metrics = GuardedLimits(RedisLimits(connect(url, PATIENT))), Metrics(["7b"], {}, ["acme"])
    meter = Meter(limits, MemoryLimits(), metrics)
    slow = replace(ALLOWED, requests_per_minute=1, requests_burst=100)  # hides no loss by what comes back
    allowed = replace(slow, budget=Budget(per_day=1.0))  # which fails closed
    acme = Tenant(name="acme", limits=allowed)
    await meter.settle(await meter.reserve(acme, "warm", NOTHING), None)
    for number in range(3):
        between.losses = 2
        with pytest.raises(ApiError) as refused:
            await meter.reserve(acme, f"{number}", Amount(tokens=300, money=1))
        assert (refused.value.status, between.losses) == (503, 0)
        await meter.settle(await meter.reserve(acme, f"after {number}", NOTHING), None)
    left = await limits.look("acme", allowed)
    assert [left[name].remaining for name in ("requests", "tokens", "budget_day")] == [100, 1000, 1.0]
    await limits.close()


async def test_a_server_that_closes_all_connections_now_and_then_costs_no_answer(
    redis: "RedisServer",
) -> None:
    """As one that fails over does. A tenth of the answers to a tenant whose budget fails closed used to be lost."""
    stores = open_stores(State(redis=redis.url), always(60.0))
    generous = Limits(requests_per_minute=10**9)
    session = await asyncio.wait_for(stores.sessions.create("acme"), 10)
    for round_ in range(20):
        assert redis.ask("CLIENT PAUSE 10000 WRITE") == "+OK"  # what is asked now waits for its answer
        asked = [
            asyncio.create_task(stores.limits.reserve("acme", generous, f"{round_}-{number}", Amount()))
            for number in range(10)
        ]
        await asyncio.sleep(0.005)
        killed = redis.ask("CLIENT KILL TYPE normal SKIPME yes")
        assert killed is not None and int(killed.removeprefix(":")) >= 10
        assert redis.ask("CLIENT UNPAUSE") == "+OK"
        await asyncio.gather(*asked, stores.sessions.get("acme", session.id))
    await stores.close()

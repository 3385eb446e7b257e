"""Connections to Redis that are lost under a question: what was asked is done once, and answered."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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


@asynccontextmanager
async def metered(url: str) -> AsyncIterator[tuple[Meter, GuardedLimits]]:
    """A meter over a Redis that is reached by the URL; nothing comes back by itself."""
    limits = GuardedLimits(RedisLimits(connect(url, PATIENT), lambda: 1_800_000_000.0))
    try:
        yield Meter(limits, MemoryLimits(), Metrics(["7b"], {}, ["acme"])), limits
    finally:
        await limits.close()


async def left_at(url: str) -> tuple[float, float]:
    """Requests and tokens of acme, as another gateway finds them."""
    limits = RedisLimits(connect(url, PATIENT), lambda: 1_800_000_000.0)
    left = await limits.look("acme", ALLOWED)
    await limits.close()
    return left["requests"].remaining, left["tokens"].remaining


async def leases_at(url: str) -> int:
    client = connect(url, PATIENT)
    number: int = await client.zcard("headrace:{acme}:leases")
    await client.aclose()
    return number


async def test_a_call_that_was_taken_unheard_is_counted_by_what_it_used(
    forgetful: tuple[Forgetful, str], redis: "RedisServer"
) -> None:
    """It runs by this gateway's share. Its place in Redis used to be free at once for another one, and nothing of what
    it used was counted there."""
    between, url = forgetful
    acme = Tenant(name="acme", limits=ALLOWED)
    async with metered(url) as (meter, _):
        await meter.settle(await meter.reserve(acme, "warm", NOTHING), NOTHING)
        between.losses = 2
        lost = await meter.reserve(acme, "lost", Amount(tokens=300))
        assert (lost.degraded, between.losses) == (True, 0)
        await meter.settle(await meter.reserve(acme, "next", NOTHING), NOTHING)
        assert await left_at(redis.url) == (97, 700)
        assert await leases_at(redis.url) == 1
        between.losses = 2  # its settling, too
        await meter.settle(lost, Amount(tokens=120))
        assert between.losses == 0
        await meter.settle(await meter.reserve(acme, "last", NOTHING), NOTHING)
        assert await left_at(redis.url) == (96, 880)
        assert await leases_at(redis.url) == 0


async def test_a_call_that_was_never_taken_is_counted_here_alone(redis: "RedisServer") -> None:
    acme = Tenant(name="acme", limits=ALLOWED)
    async with metered(redis.url) as (meter, limits):
        await meter.settle(await meter.reserve(acme, "warm", NOTHING), NOTHING)
        assert redis.ask("CLIENT PAUSE 10000 WRITE") == "+OK"
        reserving = asyncio.create_task(meter.reserve(acme, "lost", Amount(tokens=300)))
        while not reserving.done():
            await asyncio.sleep(0.01)
            redis.ask("CLIENT KILL TYPE normal SKIPME yes")
        assert redis.ask("CLIENT UNPAUSE") == "+OK"
        lost = await reserving
        assert lost.degraded
        await meter.settle(lost, Amount(tokens=120))
        assert await left_at(redis.url) == (99, 1000)
        assert await leases_at(redis.url) == 0
        with pytest.raises(LimitStoreUnavailable):  # nor is it later, if it is still on its way
            await limits.reserve("acme", ALLOWED, "lost", Amount(tokens=300))


async def test_whatever_is_lost_nothing_is_counted_twice_and_no_place_is_kept(
    forgetful: tuple[Forgetful, str], redis: "RedisServer"
) -> None:
    between, url = forgetful
    choice = random.Random(5)
    generous = Limits(requests_per_minute=10**6, tokens_per_minute=10**6, parallel=10**4)
    acme = Tenant(name="acme", limits=generous)
    ran, sure = [0, 0], [0, 0]
    async with metered(url) as (meter, limits):

        async def call(name: str) -> None:
            between.losses = choice.choice((0, 0, 0, 1, 2, 5, 10))
            charge = await meter.reserve(acme, name, Amount(tokens=100))
            await asyncio.sleep(choice.random() * 0.01)
            tokens = choice.randrange(200)
            await meter.settle(charge, Amount(tokens=tokens))
            for sum_ in (ran, sure)[: 1 if charge.degraded else 2]:
                sum_[0], sum_[1] = sum_[0] + 1, sum_[1] + tokens

        for round_ in range(30):
            await asyncio.gather(*(call(f"{round_} {number}") for number in range(5)))
        between.losses = 0
        await asyncio.sleep(0.6)  # the store is left in peace for a while
        await soon_settled(limits, acme)
        left = await limits.look("acme", generous)
        requests, tokens = (10**6 - left[name].remaining for name in ("requests", "tokens"))
        assert sure[0] <= requests <= ran[0]
        assert sure[1] <= tokens <= ran[1]
        assert sure[0] < ran[0]  # there was what is tried here
    assert await leases_at(redis.url) == 0


async def soon_settled(limits: GuardedLimits, tenant: Tenant) -> None:
    """Until nothing is owed any more."""
    async with asyncio.timeout(10):
        for number in range(40):
            held = await limits.reserve(tenant.name, tenant.limits, f"settling {number}", NOTHING)
            await limits.settle(held, tenant.limits, None)


async def test_what_is_owed_is_given_back_though_nobody_asks_any_more(
    forgetful: tuple[Forgetful, str], redis: "RedisServer"
) -> None:
    """Its place used to be kept from other gateways until the next request to this one, or for eleven minutes."""
    between, url = forgetful
    stores = open_stores(State(redis=url), always(60.0))
    stores.greet()
    async with asyncio.timeout(10):
        while not (stores.pulse and stores.pulse.words):
            await asyncio.sleep(0.01)
        await stores.limits.settle(
            await stores.limits.reserve("acme", ALLOWED, "warm", NOTHING), ALLOWED, NOTHING
        )
        between.losses = 2
        with pytest.raises(LimitStoreUnavailable):
            await stores.limits.reserve("acme", ALLOWED, "lost", Amount(tokens=300))
        while await leases_at(redis.url):
            await asyncio.sleep(0.02)
    await stores.close()

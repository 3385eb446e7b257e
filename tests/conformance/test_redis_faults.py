"""A Redis that is frozen, killed, restarted, emptied of its scripts, or asked by callers who go away."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from backends.breaker import Breaker
from gateway.config import Limits, State
from gateway.guard import Guard
from gateway.limits import NOTHING, Amount, LimitExceeded, LimitStore, LimitStoreUnavailable, Reservation
from gateway.limits_guard import GuardedLimits
from gateway.limits_memory import MemoryLimits
from gateway.limits_redis import RedisLimits
from gateway.state import Stores, open_stores
from sessions import SessionNotFound, SessionStoreUnavailable, Turn
from sessions.connection import CONNECTIONS, connect
from sessions.redis import RedisSessions
from sessions.retention import always

if TYPE_CHECKING:
    from tests.conformance.conftest import RedisServer

PATIENT = 10.0
SLACK = 1.0  # seconds that a busy machine may add
ADDED = 0.06  # seconds that a request may wait in vain
TIMEOUT = 0.05  # seconds of a client that nobody takes the pulse for
GENEROUS = Limits(requests_per_minute=10**9)


async def stores_in(server: "RedisServer") -> Stores:
    """As the gateway opens them, with a connection for pings."""
    stores = open_stores(State(redis=server.url), always(60.0))
    assert stores.pulse is not None
    async with asyncio.timeout(10):
        while not stores.pulse.words:
            stores.greet()
            await asyncio.sleep(0.01)
    return stores


async def soon(attempt: Callable[[], Awaitable[object]], *expected: type[Exception]) -> float:
    """Repeat until it succeeds; seconds that took."""
    started = time.monotonic()
    while True:
        try:
            await attempt()
        except expected:
            assert time.monotonic() - started < 60
            await asyncio.sleep(0.02)
        else:
            return time.monotonic() - started


def reserving(limits: LimitStore, allowed: Limits) -> Callable[[], Awaitable[Reservation]]:
    return lambda: limits.reserve("acme", allowed, f"{random.random()}", NOTHING)


async def test_a_frozen_redis_costs_a_moment_then_nothing_and_is_back_at_once(
    mortal_redis: "RedisServer",
) -> None:
    stores = await stores_in(mortal_redis)
    limits = stores.limits
    reserve = reserving(limits, GENEROUS)
    await soon(reserve, LimitStoreUnavailable)
    mortal_redis.freeze()
    waits = [await refusal_time(reserve) for _ in range(20)]
    assert max(waits) < ADDED + SLACK
    assert sorted(waits)[10] < ADDED / 2  # the breaker: most did not even ask
    mortal_redis.thaw()
    assert await soon(reserve, LimitStoreUnavailable) < 1.0 + SLACK
    await stores.close()


async def test_a_request_waits_but_once_for_a_frozen_redis(mortal_redis: "RedisServer") -> None:
    """Each of its questions used to find out for itself, those of sessions for half a second each."""
    stores = await stores_in(mortal_redis)
    held = await stores.limits.reserve("acme", GENEROUS, "held", NOTHING)
    session = await stores.sessions.create("acme")
    mortal_redis.freeze()
    started = time.monotonic()
    for question in (
        stores.sessions.get("acme", session.id),
        stores.limits.reserve("acme", GENEROUS, "next", NOTHING),
        stores.sessions.create("acme"),
        stores.limits.settle(held, GENEROUS, NOTHING),
        stores.documents.get("acme", "resp_1"),
    ):
        with pytest.raises((SessionStoreUnavailable, LimitStoreUnavailable)):
            await question
    assert time.monotonic() - started < ADDED + SLACK
    mortal_redis.thaw()
    assert await soon(lambda: stores.sessions.get("acme", session.id), SessionStoreUnavailable) < 1.0 + SLACK
    await stores.close()


@pytest.mark.parametrize("stall", [0.12, 0.6])
async def test_a_starved_gateway_does_not_take_redis_for_silent(redis: "RedisServer", stall: float) -> None:
    """Without CPU for a moment, or longer than any answer may take, it hears nothing; it reads afterwards what Redis
    has said meanwhile, to all who have asked, on connections that had to be made first."""
    stores = await stores_in(redis)
    session = await asyncio.wait_for(stores.sessions.create("acme"), 10)

    async def ask() -> None:
        await reserving(stores.limits, GENEROUS)()
        await stores.sessions.get("acme", session.id)

    async def starve() -> None:
        for _ in range(round(1.8 / stall)):
            time.sleep(stall)
            await asyncio.sleep(0.001)

    starving = asyncio.create_task(starve())
    await asyncio.gather(*(ask() for _ in range(20)))
    starving.cancel()
    await stores.close()


async def test_a_long_answer_is_no_silence(redis: "RedisServer") -> None:
    """Megabytes take longer than a frozen server is waited for."""
    turns = tuple(Turn("user", "x" * 1_000_000) for _ in range(8))
    writer = RedisSessions(connect(redis.url, PATIENT), always(60.0))
    session = await writer.create("acme")
    await writer.append("acme", session.id, turns, 0)
    await writer.close()
    stores = await stores_in(redis)
    await soon(lambda: stores.sessions.get("acme", session.id), SessionStoreUnavailable)
    assert (await stores.sessions.get("acme", session.id)).turns == turns
    await stores.close()


async def refusal_time(attempt: Callable[[], Awaitable[object]]) -> float:
    started = time.monotonic()
    with pytest.raises(LimitStoreUnavailable):
        await attempt()
    return time.monotonic() - started


async def test_reservations_stuck_in_a_frozen_redis_take_no_place_when_it_thaws(
    mortal_redis: "RedisServer",
) -> None:
    allowed = Limits(parallel=3)
    limits = GuardedLimits(RedisLimits(connect(mortal_redis.url, TIMEOUT)), Guard(Breaker(failures=100)))
    await soon(lambda: limits.reserve("umbrella", GENEROUS, "warm", NOTHING), LimitStoreUnavailable)
    held = await limits.reserve("acme", allowed, "held", NOTHING)
    mortal_redis.freeze()
    for number in range(3):
        with pytest.raises(LimitStoreUnavailable):
            await limits.reserve("acme", allowed, f"stuck-{number}", NOTHING)
    with pytest.raises(LimitStoreUnavailable):
        await limits.settle(held, allowed, NOTHING)
    mortal_redis.thaw()
    for _ in range(3):
        await soon(reserving(limits, allowed), LimitStoreUnavailable, LimitExceeded)
    with pytest.raises(LimitExceeded):
        await limits.reserve("acme", allowed, "one too many", NOTHING)
    await limits.close()


async def test_a_killed_redis_is_reported_and_found_again_after_its_restart(
    mortal_redis: "RedisServer",
) -> None:
    stores = await stores_in(mortal_redis)
    limits, sessions = stores.limits, stores.sessions
    await soon(reserving(limits, GENEROUS), LimitStoreUnavailable)
    mortal_redis.kill()
    assert max([await refusal_time(reserving(limits, GENEROUS)) for _ in range(5)]) < 2 * TIMEOUT + SLACK
    with pytest.raises(SessionStoreUnavailable):
        await sessions.create("acme")
    mortal_redis.start()
    assert await soon(reserving(limits, GENEROUS), LimitStoreUnavailable) < 1.0 + SLACK
    await soon(lambda: sessions.create("acme"), SessionStoreUnavailable)
    await stores.close()


@pytest.mark.parametrize(
    ("begin", "end"),
    [("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"), ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE")],
)
async def test_a_redis_that_takes_no_writes_is_not_up(
    mortal_redis: "RedisServer", begin: str, end: str
) -> None:
    """One that is full, or has become a replica, answers pings as ever: it used to be told of as well."""
    told = list[bool]()
    stores = open_stores(State(redis=mortal_redis.url), always(60.0), told.append)
    await soon(lambda: stores.sessions.create("acme"), SessionStoreUnavailable)
    assert mortal_redis.ask(begin) == "+OK"
    with pytest.raises(SessionStoreUnavailable):
        await stores.sessions.create("acme")
    async with asyncio.timeout(60):
        while told[-3:] != [False] * 3:
            await asyncio.sleep(0.02)
    assert mortal_redis.ask(end) == "+OK"
    async with asyncio.timeout(60):
        while not told[-1]:
            await asyncio.sleep(0.02)
    await soon(lambda: stores.sessions.create("acme"), SessionStoreUnavailable)
    await stores.close()


async def test_a_frozen_redis_never_looks_like_an_empty_history(mortal_redis: "RedisServer") -> None:
    stores = await stores_in(mortal_redis)
    sessions = stores.sessions
    session = await sessions.create("acme")
    mortal_redis.freeze()
    started = time.monotonic()
    for attempt in (
        sessions.get("acme", session.id),
        sessions.append("acme", session.id, (Turn("user", "Hello"),), 0),
        sessions.list("acme"),
        sessions.delete("acme", session.id),
    ):
        with pytest.raises(SessionStoreUnavailable):
            await attempt
    assert time.monotonic() - started < ADDED + SLACK  # the first has found out, the others need not
    mortal_redis.thaw()
    await stores.close()


async def test_scripts_that_the_server_lost_are_loaded_again_under_load(redis: "RedisServer") -> None:
    limits = GuardedLimits(RedisLimits(connect(redis.url, PATIENT)))
    sessions = RedisSessions(connect(redis.url, PATIENT), always(60.0))
    for _ in range(10):
        reservations = asyncio.gather(*(reserving(limits, GENEROUS)() for _ in range(20)))
        creations = asyncio.gather(*(sessions.create("acme") for _ in range(20)))
        assert redis.ask("SCRIPT FLUSH") == "+OK"
        await reservations
        await creations
    await limits.close()
    await sessions.close()


async def test_more_callers_than_connections_wait_their_turn(redis: "RedisServer") -> None:
    limits = GuardedLimits(RedisLimits(connect(redis.url, PATIENT)))
    await asyncio.gather(*(reserving(limits, GENEROUS)() for _ in range(8 * CONNECTIONS)))
    await limits.close()


async def test_no_caller_gets_what_another_one_asked_for_and_left(redis: "RedisServer") -> None:
    """A cancelled command once left its answer on the connection for whoever came next, in more than one service."""
    sessions = RedisSessions(connect(redis.url, PATIENT), always(60.0))
    words: dict[tuple[str, str], str] = {}
    for number in range(20):
        tenant = f"tenant-{number}"
        session = await sessions.create(tenant)
        words[tenant, session.id] = f"the words of {tenant}"
        await sessions.append(tenant, session.id, (Turn("user", words[tenant, session.id]),), 0)
    choice = random.Random(7)
    answered = 0
    for _ in range(30):
        asked = choice.choices(list(words), k=40)
        callers = [asyncio.create_task(sessions.get(*key)) for key in asked]
        await asyncio.sleep(choice.random() * 0.004)
        for caller in choice.sample(callers, 10):
            caller.cancel()
        for key, outcome in zip(asked, await asyncio.gather(*callers, return_exceptions=True), strict=True):
            if not isinstance(outcome, asyncio.CancelledError):
                assert not isinstance(outcome, BaseException), outcome
                assert [turn.content for turn in outcome.turns] == [words[key]]
                answered += 1
    assert answered >= 900
    await sessions.close()


async def test_a_record_of_another_tenant_is_refused_wherever_it_lies(redis: "RedisServer") -> None:
    client = connect(redis.url, PATIENT)
    sessions = RedisSessions(client, always(60.0))
    mine, theirs = await sessions.create("acme"), await sessions.create("umbrella")
    await client.rename(f"headrace:{{umbrella}}:session:{theirs.id}", f"headrace:{{acme}}:session:{mine.id}")
    with pytest.raises(SessionStoreUnavailable, match="of another session"):
        await sessions.get("acme", mine.id)
    with pytest.raises(SessionNotFound):
        await sessions.get("umbrella", theirs.id)
    await sessions.close()


async def test_a_key_of_the_wrong_kind_is_no_traceback(redis: "RedisServer") -> None:
    client = connect(redis.url, PATIENT)
    await client.set("headrace:{acme}:account", "not a hash")
    with pytest.raises(LimitStoreUnavailable, match="WRONGTYPE"):
        await RedisLimits(client).reserve("acme", GENEROUS, "a", Amount(tokens=1))
    await client.aclose()


async def test_the_largest_limits_are_counted_to_the_last_token(redis: "RedisServer") -> None:
    """Lua has only doubles; credits must stay whole numbers in them."""
    largest = Limits(tokens_per_minute=10**9)

    def clock() -> float:
        return 1.8e9

    stores: tuple[LimitStore, ...] = (
        MemoryLimits(clock, clock),
        RedisLimits(connect(redis.url, PATIENT), clock),
    )
    outcomes = []
    for store in stores:
        await store.settle(
            await store.reserve("acme", largest, "a", Amount(tokens=1)), largest, Amount(tokens=10**9 + 7)
        )
        with pytest.raises(LimitExceeded) as refusal:
            await store.reserve("acme", largest, "b", Amount(tokens=10**9))
        outcomes.append((refusal.value.retry_after, refusal.value.left["tokens"]))
        await store.close()
    assert outcomes[0] == outcomes[1]


async def test_the_servers_own_clock_lets_tokens_come_back(redis: "RedisServer") -> None:
    allowed = Limits(tokens_per_minute=60_000)
    limits = RedisLimits(connect(redis.url, PATIENT))
    await limits.reserve("acme", allowed, "a", Amount(tokens=60_000))
    started = time.monotonic()
    await asyncio.sleep(0.1)
    with pytest.raises(LimitExceeded) as refusal:
        await limits.reserve("acme", allowed, "b", Amount(tokens=60_000))
    assert 95 <= refusal.value.left["tokens"].remaining <= (time.monotonic() - started) * 1000 + 5
    await limits.close()


async def test_nothing_stays_in_redis_for_ever(redis: "RedisServer") -> None:
    client = connect(redis.url, PATIENT)
    limits, sessions = RedisLimits(client), RedisSessions(client, always(60.0))
    allowed = Limits(tokens_per_minute=10)
    reservation = await limits.reserve("acme", allowed, "a", Amount(tokens=10))
    await limits.reserve("umbrella", allowed, "b", Amount(tokens=10))
    await limits.settle(reservation, allowed, Amount(tokens=10**6))
    await limits.settle(reservation, allowed, Amount(tokens=10**6))
    await sessions.create("acme")
    keys = await client.keys("*")
    assert len(keys) == 6
    lives = {key: await client.pttl(key) for key in keys}
    assert all(life > 0 for life in lives.values()), lives
    assert lives[b"headrace:{acme}:account"] > 10**5 * 60_000  # as long as it takes to work off what was used
    await client.aclose()

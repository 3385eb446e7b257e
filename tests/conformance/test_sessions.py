"""What every store of sessions promises."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from sessions import Call, Session, SessionConflict, SessionNotFound, SessionStore, Turn, new_session_id

HELLO = (Turn("user", "Hello"), Turn("assistant", "Hi \N{WAVING HAND SIGN}", tier="7b"))
BYE = (Turn("user", "Bye", name="ann"), Turn("assistant", "See y", tier="13b", partial=True))
LOOP = (
    Turn("assistant", "", calls=(Call("call_1", "add", '{"a": 1}'),)),
    Turn("tool", "2", answers="call_1"),
)


async def test_a_session_holds_what_was_appended_in_order(sessions: SessionStore) -> None:
    created = await sessions.create("acme")
    assert created == Session(id=created.id)
    await sessions.append("acme", created.id, HELLO, 0)
    assert await sessions.get("acme", created.id) == Session(created.id, HELLO, 1)
    await sessions.append("acme", created.id, BYE, 1)
    await sessions.append("acme", created.id, LOOP, 2)
    assert await sessions.get("acme", created.id) == Session(created.id, HELLO + BYE + LOOP, 3)


async def test_another_gateway_sees_the_same(open_sessions: Callable[[], SessionStore]) -> None:
    one, other = open_sessions(), open_sessions()
    session = await one.create("acme")
    await other.append("acme", session.id, HELLO, 0)
    assert (await one.get("acme", session.id)).turns == HELLO
    await one.close()
    assert (await other.get("acme", session.id)).turns == HELLO
    await other.close()


async def test_of_two_concurrent_appends_one_conflicts_and_is_not_stored(sessions: SessionStore) -> None:
    session = await sessions.create("acme")
    outcomes = await asyncio.gather(
        sessions.append("acme", session.id, HELLO, 0),
        sessions.append("acme", session.id, BYE, 0),
        return_exceptions=True,
    )
    (lost,) = [number for number, outcome in enumerate(outcomes) if outcome is not None]
    assert isinstance(outcomes[lost], SessionConflict)
    assert await sessions.get("acme", session.id) == Session(session.id, (BYE, HELLO)[lost], 1)


async def test_no_turn_is_lost_or_doubled_among_gateways_that_append_at_once(
    open_sessions: Callable[[], SessionStore],
) -> None:
    gateways = [open_sessions() for _ in range(3)]
    session = await gateways[0].create("acme")

    async def say(gateway: SessionStore, word: str) -> None:
        version = 0
        while True:
            try:
                await gateway.append("acme", session.id, (Turn("user", word),), version)
            except SessionConflict:
                version = (await gateway.get("acme", session.id)).version
            else:
                return

    words = [f"word {number}" for number in range(30)]
    await asyncio.gather(*(say(gateways[number % 3], word) for number, word in enumerate(words)))
    kept = (await gateways[0].get("acme", session.id)).turns
    assert sorted(turn.content for turn in kept) == sorted(words)
    for gateway in gateways:
        await gateway.close()


@pytest.mark.parametrize("version", [-1, 0, 2, 10**9])
async def test_an_append_to_any_other_version_conflicts(sessions: SessionStore, version: int) -> None:
    session = await sessions.create("acme")
    await sessions.append("acme", session.id, HELLO, 0)
    with pytest.raises(SessionConflict):
        await sessions.append("acme", session.id, BYE, version)
    assert (await sessions.get("acme", session.id)).turns == HELLO


async def test_a_turn_is_erased_and_the_others_keep_their_places(sessions: SessionStore) -> None:
    session = await sessions.create("acme")
    await sessions.append("acme", session.id, HELLO, 0)
    await sessions.append("acme", session.id, BYE, 1)
    erased = await sessions.replace("acme", session.id, 1, HELLO[1], None)
    assert erased == Session(session.id, (HELLO[0], *BYE), 2, erased=(1,))
    assert list(erased.placed) == [(0, HELLO[0]), (2, BYE[0]), (3, BYE[1])]
    changed = Turn("user", "Good bye")
    assert (await sessions.replace("acme", session.id, 2, BYE[0], changed)).turns == (
        HELLO[0],
        changed,
        BYE[1],
    )
    await sessions.append("acme", session.id, LOOP, 2)
    grown = await sessions.get("acme", session.id)
    assert list(grown.placed)[-2:] == [(4, LOOP[0]), (5, LOOP[1])]
    assert grown.version == 3


async def test_a_turn_that_is_another_one_by_now_stays(sessions: SessionStore) -> None:
    session = await sessions.create("acme")
    await sessions.append("acme", session.id, HELLO, 0)
    for place, before in ((0, HELLO[1]), (2, HELLO[1]), (7, HELLO[0])):
        with pytest.raises(SessionConflict):
            await sessions.replace("acme", session.id, place, before, None)
    await sessions.replace("acme", session.id, 0, HELLO[0], None)
    with pytest.raises(SessionConflict):
        await sessions.replace("acme", session.id, 0, HELLO[0], None)
    for tenant, session_id in (("umbrella", session.id), ("acme", new_session_id())):
        with pytest.raises(SessionNotFound):
            await sessions.replace(tenant, session_id, 0, HELLO[0], None)
    assert (await sessions.get("acme", session.id)).turns == HELLO[1:]


async def test_turns_erased_and_appended_at_once_lose_nothing_else(
    open_sessions: Callable[[], SessionStore],
) -> None:
    one, other = open_sessions(), open_sessions()
    said = tuple(Turn("user", str(number)) for number in range(6))
    session = await one.create("acme")
    await one.append("acme", session.id, said, 0)
    await asyncio.gather(
        *(
            store.replace("acme", session.id, place, said[place], None)
            for store, place in ((one, 0), (other, 3), (one, 5))
        ),
        other.append("acme", session.id, HELLO, 1),
    )
    assert (await one.get("acme", session.id)).turns == (said[1], said[2], said[4], *HELLO)
    await one.close()
    await other.close()


@pytest.mark.parametrize(
    "session_id",
    ["", "new", "sess_", new_session_id(), "'; DROP TABLE session; --", "a\0b", "{umbrella}", "x" * 10_000],
)
async def test_an_unknown_id_is_not_found(sessions: SessionStore, session_id: str) -> None:
    for attempt in (
        sessions.get("acme", session_id),
        sessions.append("acme", session_id, HELLO, 0),
        sessions.append("acme", session_id, HELLO, -1),
        sessions.delete("acme", session_id),
    ):
        with pytest.raises(SessionNotFound):
            await attempt
    assert await sessions.list("acme") == ()


async def test_another_tenants_id_is_like_an_unknown_one(sessions: SessionStore) -> None:
    session = await sessions.create("acme")
    await sessions.append("acme", session.id, HELLO, 0)
    unknown = new_session_id()
    for session_id in (session.id, unknown):
        for attempt in (
            sessions.get("umbrella", session_id),
            sessions.append("umbrella", session_id, BYE, 1),
            sessions.delete("umbrella", session_id),
        ):
            with pytest.raises(SessionNotFound) as refusal:
                await attempt
            assert refusal.value.args == (session_id,)
    assert await sessions.list("umbrella") == ()
    assert (await sessions.get("acme", session.id)).turns == HELLO


async def test_the_list_begins_with_the_session_used_last(sessions: SessionStore) -> None:
    first, second, third = [(await sessions.create("acme")).id for _ in range(3)]
    await sessions.create("umbrella")
    assert await sessions.list("acme") == (third, second, first)
    await sessions.append("acme", first, HELLO, 0)
    assert await sessions.list("acme") == (first, third, second)


async def test_a_deleted_session_is_gone(sessions: SessionStore) -> None:
    kept, gone = (await sessions.create("acme")).id, (await sessions.create("acme")).id
    await sessions.append("acme", gone, HELLO, 0)
    await sessions.delete("acme", gone)
    with pytest.raises(SessionNotFound):
        await sessions.get("acme", gone)
    with pytest.raises(SessionNotFound):
        await sessions.append("acme", gone, BYE, 1)
    assert await sessions.list("acme") == (kept,)


async def test_a_session_is_forgotten_its_time_after_the_last_append(
    open_sessions: Callable[..., SessionStore], patiently: Callable[..., Awaitable[None]]
) -> None:
    async def check(ttl: float) -> None:
        async with AsyncExitStack() as stack:
            sessions = open_sessions(ttl=ttl)
            stack.push_async_callback(sessions.close)
            await forgets(sessions, ttl)

    await patiently(check, 1.0)


async def forgets(sessions: SessionStore, ttl: float) -> None:
    tenant = f"acme-{ttl}"
    session = await sessions.create(tenant)
    await asyncio.sleep(0.6 * ttl)
    await sessions.append(tenant, session.id, HELLO, 0)
    await asyncio.sleep(0.6 * ttl)
    assert (await sessions.get(tenant, session.id)).turns == HELLO
    await asyncio.sleep(0.6 * ttl)
    assert await sessions.list(tenant) == ()
    for attempt in (sessions.get(tenant, session.id), sessions.append(tenant, session.id, BYE, 1)):
        with pytest.raises(SessionNotFound):
            await attempt
    other = await sessions.create(tenant)
    assert await sessions.list(tenant) == (other.id,)


async def test_a_long_history_comes_back_whole(sessions: SessionStore) -> None:
    session = await sessions.create("acme")
    turns = tuple(Turn("user", f"{number} " * 500) for number in range(500))
    await sessions.append("acme", session.id, turns, 0)
    assert (await sessions.get("acme", session.id)).turns == turns

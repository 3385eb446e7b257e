"""No turn is lost because the store failed when it ended, and none is written twice."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.prompt import ChatMessage, Prompt
from gateway import owed_turns
from gateway.config import Tenant
from gateway.errors import ApiError
from gateway.metrics import Metrics
from gateway.owed_turns import OwedTurns, extend
from gateway.recall import Memory
from gateway.request import Request
from sessions import Session, SessionStoreUnavailable, Turn
from sessions.retention import always
from sessions.sqlite import SqliteSessions

FIRST, SECOND = (Turn("user", "one"), Turn("assistant", "1")), (Turn("user", "two"), Turn("assistant", "2"))


class Failing(SqliteSessions):
    """`down`: takes nothing; `mute`: takes what it is given, and does not say so."""

    down = mute = False

    async def get(self, tenant: str, session_id: str) -> Session:
        if self.down:
            raise SessionStoreUnavailable("down")
        return await super().get(tenant, session_id)

    async def append(self, tenant: str, session_id: str, turns: tuple[Turn, ...], expected: int) -> None:
        if self.down:
            raise SessionStoreUnavailable("down")
        await super().append(tenant, session_id, turns, expected)
        if self.mute:
            raise SessionStoreUnavailable("mute")

    async def turns(self, session: Session) -> tuple[Turn, ...]:
        return (await self.get("acme", session.id)).turns


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Failing]:
    made = Failing(tmp_path / "sessions.sqlite", always(60.0))
    yield made
    await made.close()


async def owing(store: Failing, session: Session, *, mute: bool = False, most: int = 1000) -> OwedTurns:
    """The second turn could not be written, the first could."""
    owed = OwedTurns(store, most)
    await owed.extend("acme", session, FIRST)
    store.down, store.mute = not mute, mute
    with pytest.raises(SessionStoreUnavailable):
        await owed.extend("acme", as_read(session), SECOND)
    store.down = store.mute = False
    return owed


def as_read(session: Session) -> Session:
    return Session(id=session.id, turns=FIRST, version=1)


@pytest.mark.parametrize("mute", [False, True])
async def test_they_are_written_once_before_the_session_is_read(store: Failing, mute: bool) -> None:
    session = await store.create("acme")
    owed = await owing(store, session, mute=mute)
    await owed.repay("acme", session.id)
    await owed.repay("acme", session.id)
    assert await store.turns(session) == FIRST + SECOND
    await owed.close()


async def test_they_are_written_by_themselves(store: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owed_turns, "AGAIN", 0.01)
    session = await store.create("acme")
    owed = await owing(store, session)
    async with asyncio.timeout(30):
        while await store.turns(session) != FIRST + SECOND:
            await asyncio.sleep(0.01)
    await owed.close()


async def test_they_stand_in_their_order_and_behind_what_others_said(store: Failing) -> None:
    session = await store.create("acme")
    owed = await owing(store, session)
    others, third = (Turn("user", "other"),), (Turn("user", "three"),)
    await extend(store, "acme", await store.get("acme", session.id), others)
    await owed.extend("acme", as_read(session), third)
    assert await store.turns(session) == FIRST + others + SECOND + third
    await owed.close()


async def test_the_last_try_is_made_when_the_gateway_leaves(store: Failing) -> None:
    session = await store.create("acme")
    owed = await owing(store, session)
    await owed.close()
    await owed.close()
    assert await store.turns(session) == FIRST + SECOND


async def test_a_session_that_has_gone_is_owed_nothing(store: Failing) -> None:
    session = await store.create("acme")
    owed = await owing(store, session)
    await store.delete("acme", session.id)
    await owed.repay("acme", session.id)
    await owed.close()


async def test_what_is_owed_is_bounded(store: Failing, caplog: pytest.LogCaptureFixture) -> None:
    session = await store.create("acme")
    owed = await owing(store, session, most=3)
    await owed.repay("acme", session.id)
    assert await store.turns(session) == FIRST
    assert "its last turns are lost" in caplog.text and "two" not in caplog.text
    await owed.close()


async def test_nobody_goes_on_from_a_history_with_a_hole(store: Failing) -> None:
    memory = Memory(store, Metrics(["7b"], {}, ["acme"]))
    session = await store.create("acme")
    recalled = await memory.recall(asking(session, "one"))
    store.down = True
    await memory.remember(asking(session, "one"), recalled, FIRST[1])
    with pytest.raises(ApiError) as error:
        await memory.recall(asking(session, "two"))
    assert (error.value.status, error.value.code) == (503, "session_store_unavailable")
    store.down = False
    assert (await memory.recall(asking(session, "two"))).turns == (*FIRST, SECOND[0])
    await memory.close()


def asking(session: Session, text: str) -> Request:
    return Request(
        id="req_1", endpoint="chat", tenant=Tenant(name="acme"), model="auto", session=session.id,
        prompt=Prompt(messages=(ChatMessage("user", text),)), max_tokens=None, temperature=1.0, top_p=1.0,
        top_k=0, seed=None, stop=(), stop_token_ids=(), ignore_eos=False, timeout=10.0, priority=0,
    )  # fmt: skip

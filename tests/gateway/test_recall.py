"""A session is recalled as far as it goes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.prompt import ChatMessage, Prompt
from gateway.config import Tenant
from gateway.errors import ApiError
from gateway.metrics import Metrics
from gateway.recall import Memory
from gateway.request import Request
from sessions import TURN_SIZE, Session, Turn
from sessions.retention import always
from sessions.sqlite import SqliteSessions

SAID = (Turn("user", "x" * 100),)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteSessions]:
    made = SqliteSessions(tmp_path / "sessions.sqlite", always(60.0))
    yield made
    await made.close()


async def holding(store: SqliteSessions, *turns: Turn) -> Session:
    session = await store.create("acme")
    await store.append("acme", session.id, turns, 0)
    return await store.get("acme", session.id)


def asking(session: Session) -> Request:
    return Request(
        id="req_1", endpoint="chat", tenant=Tenant(name="acme"), model="auto", session=session.id,
        prompt=Prompt(messages=(ChatMessage("user", "Go on."),)), max_tokens=None, temperature=1.0, top_p=1.0,
        top_k=0, seed=None, stop=(), stop_token_ids=(), ignore_eos=False, timeout=10.0, priority=0,
    )  # fmt: skip


@pytest.mark.parametrize(("most", "full"), [(100 + TURN_SIZE + 1, False), (100 + TURN_SIZE, True)])
async def test_a_full_session_takes_no_further_turn(store: SqliteSessions, most: int, full: bool) -> None:
    session = await holding(store, *SAID)
    memory = Memory(store, Metrics(["7b"], {}, ["acme"]), most)
    if not full:
        recalled = await memory.recall(asking(session))
        assert recalled.turns == (*SAID, Turn("user", "Go on."))
        return
    with pytest.raises(ApiError, match="begin a new one") as error:
        await memory.recall(asking(session))
    assert (error.value.status, error.value.code, error.value.param) == (400, "session_full", "x-session-id")


async def test_turns_without_words_fill_it_too(store: SqliteSessions) -> None:
    assert (await holding(store, *(Turn("user", ""),) * 5)).size == 5 * TURN_SIZE

"""The configuration decides where state lives."""

import asyncio
from pathlib import Path

import pytest

from gateway.config import Limits, State
from gateway.limits import NOTHING, LimitStoreUnavailable
from gateway.state import open_stores, redis_url
from sessions import SessionNotFound, SessionStoreUnavailable
from sessions.retention import always

ONE = Limits(parallel=1)


async def test_limits_and_sessions_are_two_files_in_the_folder(tmp_path: Path) -> None:
    state = State(folder=str(tmp_path / "deep" / "down"))
    stores = open_stores(state, always(60.0))
    limits, sessions = stores.limits, stores.sessions
    assert not (tmp_path / "deep").exists()
    await limits.reserve("acme", ONE, "a", NOTHING)
    session = await sessions.create("acme")
    assert {path.suffix for path in (tmp_path / "deep" / "down").iterdir()} >= {".sqlite"}
    assert (tmp_path / "deep/down/limits.sqlite").exists() and (
        tmp_path / "deep/down/sessions.sqlite"
    ).exists()
    await stores.close()
    again = open_stores(state, always(60.0)).sessions
    assert await again.get("acme", session.id) == session
    await again.close()


async def test_sessions_live_as_long_as_the_configuration_says(tmp_path: Path) -> None:
    sessions = open_stores(State(folder=str(tmp_path)), always(0.05)).sessions
    session = await sessions.create("acme")
    await asyncio.sleep(0.1)
    with pytest.raises(SessionNotFound):
        await sessions.get("acme", session.id)
    await sessions.close()


def test_the_environment_may_hold_the_address_of_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(redis_env="TEST_REDIS")
    for wrong in (None, "", "http://h"):
        monkeypatch.delenv("TEST_REDIS", raising=False)
        if wrong is not None:
            monkeypatch.setenv("TEST_REDIS", wrong)
        with pytest.raises(
            ValueError, match="state.redis_env: the variable TEST_REDIS holds no redis:// URL"
        ):
            open_stores(state, always(60.0))
    monkeypatch.setenv("TEST_REDIS", "redis://:secret@h:1/0")
    assert redis_url(state) == "redis://:secret@h:1/0"
    assert redis_url(State()) is None


async def test_a_redis_that_is_not_there_keeps_nobody_from_starting(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    state = State(folder=str(tmp_path), redis=f"redis://127.0.0.1:{unused_tcp_port}/0")
    stores = open_stores(state, always(60.0))
    limits, sessions = stores.limits, stores.sessions
    stores.greet()
    with pytest.raises(LimitStoreUnavailable):
        await limits.reserve("acme", ONE, "a", NOTHING)
    with pytest.raises(SessionStoreUnavailable):
        await sessions.create("acme")
    await stores.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_redis_that_is_not_there_is_told_of_before_anybody_needs_it(unused_tcp_port: int) -> None:
    told: list[bool] = []
    stores = open_stores(State(redis=f"redis://127.0.0.1:{unused_tcp_port}/0"), always(60.0), told.append)
    stores.greet()
    async with asyncio.timeout(10):
        while len(told) < 2:
            await asyncio.sleep(0.01)
    await stores.close()
    assert not any(told)


async def test_a_password_never_gets_into_an_error(tmp_path: Path, unused_tcp_port: int) -> None:
    state = State(folder=str(tmp_path), redis=f"redis://me:canary-42@127.0.0.1:{unused_tcp_port}/0")
    limits = open_stores(state, always(60.0)).limits
    with pytest.raises(LimitStoreUnavailable) as error:
        await limits.reserve("acme", ONE, "a", NOTHING)
    assert "canary-42" not in str(error.value)
    await limits.close()


async def test_documents_live_where_sessions_do_and_as_long(tmp_path: Path, unused_tcp_port: int) -> None:
    for ttl, found in ((60.0, b"one"), (0.05, None)):
        documents = open_stores(State(folder=str(tmp_path)), always(ttl)).documents
        await documents.put("acme", "resp_1", b"one")
        assert (tmp_path / "responses.sqlite").exists()
        await asyncio.sleep(0.1)
        assert await documents.get("acme", "resp_1") == found
        await documents.close()
    state = State(folder=str(tmp_path), redis=f"redis://127.0.0.1:{unused_tcp_port}/0")
    elsewhere = open_stores(state, always(60.0)).documents
    with pytest.raises(SessionStoreUnavailable):
        await elsewhere.get("acme", "resp_1")
    await elsewhere.close()


async def test_a_server_that_says_no_goodbye_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.state.GOODBYE", 0.02)
    stores = open_stores(State(folder=str(tmp_path)), always(60.0))
    closed = []

    async def close() -> None:
        closed.append("documents")
        await asyncio.sleep(60)

    monkeypatch.setattr(stores.documents, "close", close)
    session = await stores.sessions.create("acme")
    await asyncio.wait_for(stores.close(), 30)
    assert closed
    again = open_stores(State(folder=str(tmp_path)), always(60.0))
    assert await again.sessions.get("acme", session.id) == session
    await again.close()

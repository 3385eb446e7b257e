"""The configuration decides where state lives."""

import asyncio
from pathlib import Path

import pytest

from gateway.config import Limits, State
from gateway.limits import NOTHING, LimitStoreUnavailable
from gateway.state import open_documents, open_limits, open_sessions, redis_url
from sessions import SessionNotFound, SessionStoreUnavailable
from sessions.retention import always

ONE = Limits(parallel=1)


async def test_limits_and_sessions_are_two_files_in_the_folder(tmp_path: Path) -> None:
    state = State(folder=str(tmp_path / "deep" / "down"))
    limits, sessions = open_limits(state), open_sessions(state, always(60.0))
    assert not (tmp_path / "deep").exists()
    await limits.reserve("acme", ONE, "a", NOTHING)
    session = await sessions.create("acme")
    assert {path.suffix for path in (tmp_path / "deep" / "down").iterdir()} >= {".sqlite"}
    assert (tmp_path / "deep/down/limits.sqlite").exists() and (
        tmp_path / "deep/down/sessions.sqlite"
    ).exists()
    await limits.close()
    await sessions.close()
    again = open_sessions(state, always(60.0))
    assert await again.get("acme", session.id) == session
    await again.close()


async def test_sessions_live_as_long_as_the_configuration_says(tmp_path: Path) -> None:
    sessions = open_sessions(State(folder=str(tmp_path)), always(0.05))
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
            open_limits(state)
    monkeypatch.setenv("TEST_REDIS", "redis://:secret@h:1/0")
    assert redis_url(state) == "redis://:secret@h:1/0"
    assert redis_url(State()) is None


async def test_a_redis_that_is_not_there_keeps_nobody_from_starting(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    state = State(folder=str(tmp_path), redis=f"redis://127.0.0.1:{unused_tcp_port}/0")
    limits, sessions = open_limits(state), open_sessions(state, always(60.0))
    with pytest.raises(LimitStoreUnavailable):
        await limits.reserve("acme", ONE, "a", NOTHING)
    with pytest.raises(SessionStoreUnavailable):
        await sessions.create("acme")
    await limits.close()
    await sessions.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_password_never_gets_into_an_error(tmp_path: Path, unused_tcp_port: int) -> None:
    state = State(folder=str(tmp_path), redis=f"redis://me:canary-42@127.0.0.1:{unused_tcp_port}/0")
    limits = open_limits(state)
    with pytest.raises(LimitStoreUnavailable) as error:
        await limits.reserve("acme", ONE, "a", NOTHING)
    assert "canary-42" not in str(error.value)
    await limits.close()


async def test_documents_live_where_sessions_do_and_as_long(tmp_path: Path, unused_tcp_port: int) -> None:
    documents = open_documents(State(folder=str(tmp_path)), always(0.2))
    await documents.put("acme", "resp_1", b"one")
    assert (tmp_path / "responses.sqlite").exists()
    assert await documents.get("acme", "resp_1") == b"one"
    await asyncio.sleep(0.3)
    assert await documents.get("acme", "resp_1") is None
    await documents.close()
    elsewhere = open_documents(
        State(folder=str(tmp_path), redis=f"redis://127.0.0.1:{unused_tcp_port}/0"), always(60.0)
    )
    with pytest.raises(SessionStoreUnavailable):
        await elsewhere.get("acme", "resp_1")
    await elsewhere.close()

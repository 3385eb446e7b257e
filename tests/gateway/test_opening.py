"""A fresh session beside its first answer."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.backend import Unavailable
from gateway.errors import ApiError
from gateway.metrics import Metrics
from gateway.opening import Opening
from gateway.recall import Memory, Recalled
from sessions import Session, SessionNotFound, SessionStoreUnavailable
from sessions.retention import always
from sessions.sqlite import SqliteSessions

FRESH = Recalled(session=Session(id="sess_1"), fresh=True)


class Slow(SqliteSessions):
    """Waits, and may fail then."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, always(60.0))
        self.go = asyncio.Event()
        self.down = False

    async def create(self, tenant: str, session_id: str | None = None) -> Session:
        await self.go.wait()
        if self.down:
            raise SessionStoreUnavailable("down")
        return await super().create(tenant, session_id)


@pytest.fixture
def store(tmp_path: Path) -> Slow:
    return Slow(tmp_path / "sessions.sqlite")


@pytest.fixture
def opening(store: Slow) -> Callable[..., Opening]:
    memory = Memory(store, Metrics(["7b"], {}, ["acme"]))
    return lambda recalled=FRESH: Opening(memory, "acme", recalled)


async def test_work_begins_before_the_session_is_there_and_waits_for_it(
    store: Slow, opening: Callable[..., Opening]
) -> None:
    fresh = opening()

    async def work() -> Session:
        with pytest.raises(SessionNotFound):
            await store.get("acme", "sess_1")
        store.go.set()
        await fresh.done()
        return await store.get("acme", "sess_1")

    assert await fresh.beside(work()) == Session(id="sess_1")
    await store.close()


async def test_nobody_waits_for_an_answer_whose_session_cannot_be_opened(
    store: Slow, opening: Callable[..., Opening]
) -> None:
    stopped: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.append("stopped")

    store.down = True
    store.go.set()
    with pytest.raises(ApiError, match="session store") as refused:
        await opening().beside(endless())
    assert (refused.value.status, stopped) == (503, ["stopped"])


async def test_what_is_ready_too_soon_is_not_told(store: Slow, opening: Callable[..., Opening]) -> None:
    fresh, told = opening(), list[str]()

    async def at_once() -> None:
        store.down = True
        store.go.set()
        await fresh.done()
        told.append("told")

    with pytest.raises(ApiError, match="session store"):
        await fresh.beside(at_once())
    assert not told


async def test_work_that_fails_leaves_nothing_behind(store: Slow, opening: Callable[..., Opening]) -> None:
    async def fail() -> None:
        raise Unavailable("died", "engine_died")

    with pytest.raises(Unavailable):
        await opening().beside(fail())
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("recalled", [Recalled(), Recalled(session=Session(id="sess_1"))])
async def test_others_wait_for_nothing(recalled: Any, opening: Callable[..., Opening]) -> None:
    other = opening(recalled)

    async def work() -> int:
        await other.done()
        return 7

    assert await other.beside(work()) == 7

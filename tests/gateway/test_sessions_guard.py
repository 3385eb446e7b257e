"""A store that fails is left in peace, and asked again."""

from collections.abc import Awaitable, Callable

import pytest

from backends.breaker import Breaker
from gateway.guard import FAILURES, PAUSE, Guard
from gateway.sessions_guard import GuardedDocuments, GuardedSessions
from sessions import (
    Session,
    SessionConflict,
    SessionDamaged,
    SessionNotFound,
    SessionStoreUnavailable,
    Turn,
)

TURN = Turn("user", "x")


class Store:
    """Both kinds at once. `fault` is raised by every method; `asked` counts."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.asked = 0

    def _ask(self) -> None:
        self.asked += 1
        if self.fault is not None:
            raise self.fault

    async def create(self, tenant: str, session_id: str | None = None) -> Session:
        self._ask()
        return Session(session_id or "s")

    async def get(self, tenant: str, id: str) -> Session:
        self._ask()
        return Session(id)

    async def append(self, tenant: str, id: str, turns: tuple[Turn, ...], expected: int) -> None:
        self._ask()

    async def replace(self, tenant: str, id: str, place: int, before: Turn, after: Turn | None) -> Session:
        self._ask()
        return Session(id)

    async def list(self, tenant: str) -> tuple[str, ...]:
        self._ask()
        return ("s",)

    async def delete(self, tenant: str, id: str) -> None:
        self._ask()

    async def close(self) -> None:
        self.asked = -1


class Documents:
    """The same for documents."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, tenant: str, id: str, data: bytes) -> None:
        await self._store.create(tenant)

    async def touch(self, tenant: str, id: str) -> None:
        await self._store.create(tenant)

    async def get(self, tenant: str, id: str) -> bytes | None:
        await self._store.create(tenant)
        return b"x"

    async def delete(self, tenant: str, id: str) -> bool:
        await self._store.create(tenant)
        return True

    async def close(self) -> None:
        await self._store.close()


class Rig:
    def __init__(self) -> None:
        self.now = 100.0
        self.store = Store()

        def clock() -> float:
            return self.now

        def guard() -> Guard:
            return Guard(Breaker(failures=FAILURES, pause=PAUSE, clock=clock))

        self.sessions = GuardedSessions(self.store, guard())
        self.documents = GuardedDocuments(Documents(self.store), guard())


@pytest.fixture
def rig() -> Rig:
    return Rig()


CALLS: list[Callable[[Rig], Awaitable[object]]] = [
    lambda rig: rig.sessions.create("a"),
    lambda rig: rig.sessions.get("a", "s"),
    lambda rig: rig.sessions.append("a", "s", (TURN,), 0),
    lambda rig: rig.sessions.replace("a", "s", 0, TURN, None),
    lambda rig: rig.sessions.list("a"),
    lambda rig: rig.sessions.delete("a", "s"),
    lambda rig: rig.documents.put("a", "d", b"x"),
    lambda rig: rig.documents.touch("a", "d"),
    lambda rig: rig.documents.get("a", "d"),
    lambda rig: rig.documents.delete("a", "d"),
]


@pytest.mark.parametrize("call", CALLS)
async def test_after_some_failures_it_is_not_even_asked_and_then_tried_once(
    rig: Rig, call: Callable[[Rig], Awaitable[object]]
) -> None:
    rig.store.fault = SessionStoreUnavailable("frozen")
    for _ in range(FAILURES + 5):
        with pytest.raises(SessionStoreUnavailable):
            await call(rig)
    assert rig.store.asked == FAILURES
    rig.now += PAUSE
    rig.store.fault = None
    await call(rig)
    await call(rig)
    assert rig.store.asked == FAILURES + 2


@pytest.mark.parametrize("answer", [SessionNotFound("s"), SessionConflict(), SessionDamaged()])
async def test_what_only_a_working_store_says_is_no_failure(rig: Rig, answer: Exception) -> None:
    rig.store.fault = answer
    for _ in range(FAILURES * 2):
        with pytest.raises(type(answer)):
            await rig.sessions.get("a", "s")
    assert rig.store.asked == FAILURES * 2


async def test_closing_reaches_the_store(rig: Rig) -> None:
    await rig.sessions.close()
    assert rig.store.asked == -1

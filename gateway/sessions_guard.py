"""Leaves a store of sessions or documents in peace after several failures, so that not every request waits for it."""

from contextlib import AbstractContextManager

from backends.breaker import Breaker
from sessions import (
    Session,
    SessionConflict,
    SessionDamaged,
    SessionNotFound,
    SessionStore,
    SessionStoreUnavailable,
    Turn,
)
from sessions.documents import DocumentStore

FAILURES = 3  # of the store in a row
PAUSE = 0.5  # seconds
ANSWERS = (
    SessionNotFound,
    SessionConflict,
    SessionDamaged,
)  # errors of which only a store that works can tell


class _Guard:
    """`breaker`: by default one that opens after `FAILURES` for `PAUSE`."""

    def __init__(self, breaker: Breaker | None) -> None:
        self._breaker = breaker or Breaker(failures=FAILURES, pause=PAUSE)

    def asking(self) -> AbstractContextManager[None]:
        return self._breaker.asking(
            failures=SessionStoreUnavailable,
            answers=ANSWERS,
            resting=SessionStoreUnavailable("the store is left in peace after several failures"),
        )


class GuardedSessions:
    """A `SessionStore` that asks `store` while it answers."""

    def __init__(self, store: SessionStore, breaker: Breaker | None = None) -> None:
        self._store = store
        self._guard = _Guard(breaker)

    async def create(self, tenant: str) -> Session:
        with self._guard.asking():
            return await self._store.create(tenant)

    async def get(self, tenant: str, session_id: str) -> Session:
        with self._guard.asking():
            return await self._store.get(tenant, session_id)

    async def append(self, tenant: str, session_id: str, turns: tuple[Turn, ...], expected: int) -> None:
        with self._guard.asking():
            await self._store.append(tenant, session_id, turns, expected)

    async def replace(
        self, tenant: str, session_id: str, place: int, before: Turn, after: Turn | None
    ) -> Session:
        with self._guard.asking():
            return await self._store.replace(tenant, session_id, place, before, after)

    async def list(self, tenant: str) -> tuple[str, ...]:
        with self._guard.asking():
            return await self._store.list(tenant)

    async def delete(self, tenant: str, session_id: str) -> None:
        with self._guard.asking():
            await self._store.delete(tenant, session_id)

    async def close(self) -> None:
        await self._store.close()


class GuardedDocuments:
    """A `DocumentStore` that asks `store` while it answers."""

    def __init__(self, store: DocumentStore, breaker: Breaker | None = None) -> None:
        self._store = store
        self._guard = _Guard(breaker)

    async def put(self, tenant: str, document_id: str, data: bytes) -> None:
        with self._guard.asking():
            await self._store.put(tenant, document_id, data)

    async def touch(self, tenant: str, document_id: str) -> None:
        with self._guard.asking():
            await self._store.touch(tenant, document_id)

    async def get(self, tenant: str, document_id: str) -> bytes | None:
        with self._guard.asking():
            return await self._store.get(tenant, document_id)

    async def delete(self, tenant: str, document_id: str) -> bool:
        with self._guard.asking():
            return await self._store.delete(tenant, document_id)

    async def close(self) -> None:
        await self._store.close()

"""Stores of sessions and documents that are asked while they answer."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.guard import Guard
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

# Errors of which only a store that works can tell.
ANSWERS = (SessionNotFound, SessionConflict, SessionDamaged)


T = TypeVar("T")


class _Guarded:
    def __init__(self, guard: Guard | None) -> None:
        """`guard`: of the server that the store is in; by default it is alone there."""
        self._guard = guard or Guard()

    async def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        return await self._guard.ask(question, failures=SessionStoreUnavailable, answers=ANSWERS)


class GuardedSessions(_Guarded):
    """A `SessionStore` that asks `store` while it answers."""

    def __init__(self, store: SessionStore, guard: Guard | None = None) -> None:
        super().__init__(guard)
        self._store = store

    async def create(self, tenant: str, session_id: str | None = None) -> Session:
        return await self._ask(self._store.create(tenant, session_id))

    async def get(self, tenant: str, session_id: str) -> Session:
        return await self._ask(self._store.get(tenant, session_id))

    async def append(self, tenant: str, session_id: str, turns: tuple[Turn, ...], expected: int) -> None:
        await self._ask(self._store.append(tenant, session_id, turns, expected))

    async def replace(
        self, tenant: str, session_id: str, place: int, before: Turn, after: Turn | None
    ) -> Session:
        return await self._ask(self._store.replace(tenant, session_id, place, before, after))

    async def list(self, tenant: str) -> tuple[str, ...]:
        return await self._ask(self._store.list(tenant))

    async def delete(self, tenant: str, session_id: str) -> None:
        await self._ask(self._store.delete(tenant, session_id))

    async def close(self) -> None:
        await self._store.close()


class GuardedDocuments(_Guarded):
    """A `DocumentStore` that asks `store` while it answers."""

    def __init__(self, store: DocumentStore, guard: Guard | None = None) -> None:
        super().__init__(guard)
        self._store = store

    async def put(self, tenant: str, document_id: str, data: bytes) -> None:
        await self._ask(self._store.put(tenant, document_id, data))

    async def touch(self, tenant: str, document_id: str) -> None:
        await self._ask(self._store.touch(tenant, document_id))

    async def get(self, tenant: str, document_id: str) -> bytes | None:
        return await self._ask(self._store.get(tenant, document_id))

    async def delete(self, tenant: str, document_id: str) -> bool:
        return await self._ask(self._store.delete(tenant, document_id))

    async def close(self) -> None:
        await self._store.close()

"""What was said in a session and could not be written down: it is written before the session is read again.

A store may fail just when an answer ends, which the client has by then. Whoever went on after that was answered as if
nothing had been said. Others who share the store see these turns once it takes them.
"""

import asyncio
import logging
from dataclasses import dataclass

from msgspec import structs

from sessions import (
    Session,
    SessionConflict,
    SessionDamaged,
    SessionNotFound,
    SessionStore,
    SessionStoreUnavailable,
    Turn,
)

logger = logging.getLogger(__name__)

APPEND_TRIES = 10
AGAIN = 0.5  # seconds after which the store is tried again, if nobody asks for the session before
MOST = 16_000_000  # characters that are owed at most; the oldest are lost then


@dataclass(frozen=True, slots=True)
class _Owed:
    turns: tuple[Turn, ...]
    after: int  # turns that there were before, those included that were erased

    @property
    def size(self) -> int:
        return sum(len(turn.content) for turn in self.turns)

    def is_in(self, session: Session) -> bool:
        """The store may have taken them, and failed only to say so."""
        place = self.after - len(session.erased)
        return session.turns[place : place + len(self.turns)] == self.turns


class OwedTurns:
    """Of one store."""

    def __init__(self, store: SessionStore, most: int = MOST) -> None:
        self._store = store
        self._most = most
        self._owed: dict[tuple[str, str], list[_Owed]] = {}  # by tenant and session, the oldest first
        self._repaying = asyncio.Lock()
        self._later: asyncio.Task[None] | None = None

    async def extend(self, tenant: str, session: Session, turns: tuple[Turn, ...]) -> None:
        """As the function; where it raises SessionStoreUnavailable the turns are owed."""
        try:
            await self.repay(tenant, session.id)
            await extend(self._store, tenant, session, turns)
        except SessionDamaged:
            raise
        except SessionStoreUnavailable:
            self._owe(tenant, session, turns)
            raise

    async def repay(self, tenant: str, session_id: str) -> None:
        """Write what is owed to this session; then it can be read. Raises SessionStoreUnavailable."""
        key = (tenant, session_id)
        if key not in self._owed:
            return
        async with self._repaying:
            while owed := self._owed.get(key):
                await self._write(tenant, session_id, owed[0])
                owed.pop(0)
                if not owed:
                    del self._owed[key]

    async def close(self) -> None:
        """Tries once more. Idempotent."""
        if self._later is not None:
            self._later.cancel()
            await asyncio.gather(self._later, return_exceptions=True)
        await self._repay_all()
        for _, session_id in self._owed:
            logger.error("session %s: its last turns are lost", session_id)
        self._owed.clear()

    def _owe(self, tenant: str, session: Session, turns: tuple[Turn, ...]) -> None:
        after = len(session.turns) + len(session.erased)
        self._owed.setdefault((tenant, session.id), []).append(_Owed(turns, after))
        while sum(owed.size for one in self._owed.values() for owed in one) > self._most:
            _, forgotten = oldest = next(iter(self._owed))
            del self._owed[oldest]
            logger.error("session %s: its last turns are lost, too much is owed to the store", forgotten)
        if self._later is None or self._later.done():
            self._later = asyncio.create_task(self._repay_later())

    async def _repay_later(self) -> None:
        while self._owed:
            await asyncio.sleep(AGAIN)
            await self._repay_all()

    async def _repay_all(self) -> None:
        for key in list(self._owed):
            try:
                await self.repay(*key)
            except SessionStoreUnavailable:
                return

    async def _write(self, tenant: str, session_id: str, owed: _Owed) -> None:
        try:
            session = await self._store.get(tenant, session_id)
            if not owed.is_in(session):
                await extend(self._store, tenant, session, owed.turns)
        except SessionNotFound:
            logger.info("session %s has gone before its last turns were stored", session_id)
        except (SessionConflict, SessionDamaged) as error:
            logger.error("session %s: its last turns are lost: %s", session_id, error)


async def extend(store: SessionStore, tenant: str, session: Session, turns: tuple[Turn, ...]) -> Session:
    """Append to `session`, behind whatever has come since it was read. Returns it as it is then.

    Raises SessionConflict after many tries, SessionNotFound, SessionStoreUnavailable.
    """
    for _ in range(APPEND_TRIES):
        try:
            await store.append(tenant, session.id, turns, session.version)
        except SessionConflict:
            session = await store.get(tenant, session.id)
        else:
            return structs.replace(session, turns=session.turns + turns, version=session.version + 1)
    raise SessionConflict(f"lost the race to append {APPEND_TRIES} times")

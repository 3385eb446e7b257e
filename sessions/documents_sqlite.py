"""Documents in a SQLite file, beside the one of the sessions."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from sessions import SessionStoreUnavailable
from sessions.database import Database

PURGED_AT_ONCE = 100

SCHEMA = """
CREATE TABLE document (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    data BLOB NOT NULL,
    stored REAL NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX document_stored ON document (stored)
"""


class SqliteDocuments:
    """A `DocumentStore`."""

    def __init__(self, path: Path, ttl: float, clock: Callable[[], float] = time.time) -> None:
        """`ttl`: seconds after the last `put`. `clock`: seconds, going on over restarts."""
        self._database = Database(
            path, SCHEMA, version=1, synchronous="NORMAL", unavailable=SessionStoreUnavailable
        )
        self._ttl = ttl
        self._clock = clock

    async def put(self, tenant: str, document_id: str, data: bytes) -> None:
        def upsert(connection: sqlite3.Connection) -> None:
            now = self._clock()
            _purge(connection, now - self._ttl)
            connection.execute(
                "INSERT OR REPLACE INTO document VALUES (?, ?, ?, ?)", (tenant, document_id, data, now)
            )

        await self._database.write(upsert)

    async def get(self, tenant: str, document_id: str) -> bytes | None:
        def select(connection: sqlite3.Connection) -> bytes | None:
            row = connection.execute(
                "SELECT data FROM document WHERE tenant = ? AND id = ? AND stored > ?",
                (tenant, document_id, self._clock() - self._ttl),
            ).fetchone()
            return None if row is None else bytes(row[0])

        return await self._database.read(select)

    async def delete(self, tenant: str, document_id: str) -> bool:
        def remove(connection: sqlite3.Connection) -> bool:
            removed = connection.execute(
                "DELETE FROM document WHERE tenant = ? AND id = ? AND stored > ?",
                (tenant, document_id, self._clock() - self._ttl),
            )
            return removed.rowcount > 0

        return await self._database.write(remove)

    async def close(self) -> None:
        await self._database.close()


def _purge(connection: sqlite3.Connection, before: float) -> None:
    """Documents whose time is over, a few at a time, so that no caller waits for all of them."""
    connection.execute(
        "DELETE FROM document WHERE rowid IN (SELECT rowid FROM document WHERE stored <= ? LIMIT ?)",
        (before, PURGED_AT_ONCE),
    )

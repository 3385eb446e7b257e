"""Documents in a SQLite file, beside the one of the sessions."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from sessions import SessionStoreUnavailable
from sessions.database import Database
from sessions.retention import Retention

PURGED_AT_ONCE = 100

SCHEMA = """
CREATE TABLE document (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    data BLOB NOT NULL,
    expires REAL NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX document_expires ON document (expires)
"""
# The first version had one retention for all, by default of 30 days.
TO_VERSION_2 = """
ALTER TABLE document RENAME COLUMN stored TO expires;
UPDATE document SET expires = expires + 2592000;
DROP INDEX document_stored;
CREATE INDEX document_expires ON document (expires)
"""


class SqliteDocuments:
    """A `DocumentStore`."""

    def __init__(self, path: Path, retention: Retention, clock: Callable[[], float] = time.time) -> None:
        """`retention`: from the last `put` or `touch`. `clock`: seconds, going on over restarts."""
        self._database = Database(
            path,
            SCHEMA,
            version=2,
            synchronous="NORMAL",
            unavailable=SessionStoreUnavailable,
            upgrades={1: TO_VERSION_2},
        )
        self._retention = retention
        self._clock = clock

    async def put(self, tenant: str, document_id: str, data: bytes) -> None:
        def upsert(connection: sqlite3.Connection) -> None:
            now = self._clock()
            _purge(connection, now)
            connection.execute(
                "INSERT OR REPLACE INTO document VALUES (?, ?, ?, ?)",
                (tenant, document_id, data, now + self._retention(tenant)),
            )

        await self._database.write(upsert)

    async def touch(self, tenant: str, document_id: str) -> None:
        def renew(connection: sqlite3.Connection) -> None:
            now = self._clock()
            connection.execute(
                "UPDATE document SET expires = ? WHERE tenant = ? AND id = ? AND expires > ?",
                (now + self._retention(tenant), tenant, document_id, now),
            )

        await self._database.write(renew)

    async def get(self, tenant: str, document_id: str) -> bytes | None:
        def select(connection: sqlite3.Connection) -> bytes | None:
            row = connection.execute(
                "SELECT data FROM document WHERE tenant = ? AND id = ? AND expires > ?",
                (tenant, document_id, self._clock()),
            ).fetchone()
            return None if row is None else bytes(row[0])

        return await self._database.read(select)

    async def delete(self, tenant: str, document_id: str) -> bool:
        def remove(connection: sqlite3.Connection) -> bool:
            removed = connection.execute(
                "DELETE FROM document WHERE tenant = ? AND id = ? AND expires > ?",
                (tenant, document_id, self._clock()),
            )
            return removed.rowcount > 0

        return await self._database.write(remove)

    async def close(self) -> None:
        await self._database.close()


def _purge(connection: sqlite3.Connection, now: float) -> None:
    """Documents whose time is over, a few at a time, so that no caller waits for all of them."""
    connection.execute(
        "DELETE FROM document WHERE rowid IN (SELECT rowid FROM document WHERE expires <= ? LIMIT ?)",
        (now, PURGED_AT_ONCE),
    )

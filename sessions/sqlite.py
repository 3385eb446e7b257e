"""Sessions in a SQLite file: shared by the processes of one host, kept through crashes of any of them."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from sessions import Session, SessionConflict, SessionNotFound, SessionStoreUnavailable, Turn, new_session_id
from sessions.database import Database
from sessions.record import decode, encode, replaced
from sessions.retention import Retention

PURGED_AT_ONCE = 100
LONG = 64 * 1024  # bytes of turns that are read, written and decoded on a thread

SCHEMA = """
CREATE TABLE session (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    used REAL NOT NULL,
    expires REAL NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX session_expires ON session (expires);
CREATE TABLE record (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    version INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (tenant, session, version)
)
"""

# The first version had one retention for all, by default of 30 days.
TO_VERSION_2 = """
ALTER TABLE session ADD COLUMN expires REAL NOT NULL DEFAULT 0;
UPDATE session SET expires = used + 2592000;
DROP INDEX session_used;
CREATE INDEX session_expires ON session (expires)
"""


class SqliteSessions:
    """A `SessionStore`."""

    def __init__(self, path: Path, retention: Retention, clock: Callable[[], float] = time.time) -> None:
        """`retention`: from the last append. `clock`: seconds, going on over restarts."""
        self._database = Database(
            path,
            SCHEMA,
            version=2,
            synchronous="NORMAL",
            unavailable=SessionStoreUnavailable,
            prompt=True,
            upgrades={1: TO_VERSION_2},
        )
        self._retention = retention
        self._clock = clock

    async def create(self, tenant: str, session_id: str | None = None) -> Session:
        session = Session(id=session_id or new_session_id())

        def insert(connection: sqlite3.Connection) -> bool:
            now = self._clock()
            connection.execute(
                "INSERT INTO session VALUES (?, ?, 0, ?, ?)",
                (tenant, session.id, now, now + self._retention(tenant)),
            )
            _add_record(connection, tenant, session.id, 0, nothing)
            return _has_expired(connection, now)

        nothing = encode(tenant, session.id, ())
        if await self._database.write(insert):
            await self._database.write(lambda connection: _purge(connection, self._clock()), long=True)
        return session

    async def get(self, tenant: str, session_id: str) -> Session:
        def select(connection: sqlite3.Connection) -> Session:
            self._version(connection, tenant, session_id)
            return decode(tenant, session_id, _records(connection, tenant, session_id))

        def select_short(connection: sqlite3.Connection) -> Session | None:
            return None if _size(connection, tenant, session_id) > LONG else select(connection)

        short = await self._database.read(select_short)
        return await self._database.read(select, long=True) if short is None else short

    async def append(self, tenant: str, session_id: str, turns: tuple[Turn, ...], expected: int) -> None:
        def add(connection: sqlite3.Connection) -> None:
            now = self._clock()
            fits = connection.execute(
                "UPDATE session SET version = ?, used = ?, expires = ?"
                " WHERE tenant = ? AND id = ? AND version = ? AND expires > ?",
                (expected + 1, now, now + self._retention(tenant), tenant, session_id, expected, now),
            ).rowcount
            if not fits:
                version = self._version(connection, tenant, session_id)
                raise SessionConflict(f"session {session_id} has version {version}, not {expected}")
            _add_record(connection, tenant, session_id, expected + 1, record)

        record = encode(tenant, session_id, turns)
        await self._database.write(add, long=len(record) > LONG)

    async def replace(
        self, tenant: str, session_id: str, place: int, before: Turn, after: Turn | None
    ) -> Session:
        def put(connection: sqlite3.Connection) -> Session:
            self._version(connection, tenant, session_id)
            records = _records(connection, tenant, session_id)
            version, data = replaced(tenant, session_id, records, place, before, after)
            connection.execute(
                "UPDATE record SET data = ? WHERE tenant = ? AND session = ? AND version = ?",
                (data, tenant, session_id, version),
            )
            records[version] = data
            return decode(tenant, session_id, records)

        return await self._database.write(put, long=True)

    async def list(self, tenant: str) -> tuple[str, ...]:
        def select(connection: sqlite3.Connection) -> tuple[str, ...]:
            rows = connection.execute(
                "SELECT id FROM session WHERE tenant = ? AND expires > ? ORDER BY used DESC",
                (tenant, self._clock()),
            )
            return tuple(row[0] for row in rows)

        return await self._database.read(select)

    async def delete(self, tenant: str, session_id: str) -> None:
        def remove(connection: sqlite3.Connection) -> None:
            self._version(connection, tenant, session_id)
            _remove(connection, tenant, session_id)

        await self._database.write(remove)

    async def close(self) -> None:
        await self._database.close()

    def _version(self, connection: sqlite3.Connection, tenant: str, session_id: str) -> int:
        row = connection.execute(
            "SELECT version FROM session WHERE tenant = ? AND id = ? AND expires > ?",
            (tenant, session_id, self._clock()),
        ).fetchone()
        if row is None:
            raise SessionNotFound(session_id)
        return int(row[0])


def _records(connection: sqlite3.Connection, tenant: str, session_id: str) -> list[bytes]:
    """By version."""
    rows = connection.execute(
        "SELECT data FROM record WHERE tenant = ? AND session = ? ORDER BY version", (tenant, session_id)
    )
    return [row[0] for row in rows]


def _size(connection: sqlite3.Connection, tenant: str, session_id: str) -> int:
    """Bytes of all records; SQLite knows it without reading them."""
    (size,) = connection.execute(
        "SELECT total(length(data)) FROM record WHERE tenant = ? AND session = ?", (tenant, session_id)
    ).fetchone()
    return int(size)


def _add_record(
    connection: sqlite3.Connection, tenant: str, session_id: str, version: int, record: bytes
) -> None:
    """The record that made the session what its version says."""
    connection.execute("INSERT INTO record VALUES (?, ?, ?, ?)", (tenant, session_id, version, record))


def _has_expired(connection: sqlite3.Connection, now: float) -> bool:
    expired = connection.execute("SELECT EXISTS (SELECT 1 FROM session WHERE expires <= ?)", (now,))
    return bool(expired.fetchone()[0])


def _purge(connection: sqlite3.Connection, now: float) -> None:
    """Sessions whose time is over, a few at a time, so that no caller waits for all of them."""
    expired = connection.execute(
        "SELECT tenant, id FROM session WHERE expires <= ? LIMIT ?", (now, PURGED_AT_ONCE)
    ).fetchall()
    for tenant, session_id in expired:
        _remove(connection, tenant, session_id)


def _remove(connection: sqlite3.Connection, tenant: str, session_id: str) -> None:
    connection.execute("DELETE FROM session WHERE tenant = ? AND id = ?", (tenant, session_id))
    connection.execute("DELETE FROM record WHERE tenant = ? AND session = ?", (tenant, session_id))

"""A SQLite file on a thread of its own: exact across the processes of one host, and no package to install."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

T = TypeVar("T")

BUSY_SECONDS = (
    1.0  # how long to wait for other writers; a transaction of theirs takes well under a millisecond
)
Work = Callable[[sqlite3.Connection], T]


class Database:
    """Opened on first use, and again after an error, so that a repaired file needs no restart.

    The file can be read by its owner alone.
    """

    def __init__(
        self,
        path: Path,
        schema: str,
        *,
        version: int,
        synchronous: Literal["OFF", "NORMAL"],
        unavailable: type[Exception],
        upgrades: Mapping[int, str] | None = None,
    ) -> None:
        """`schema`: statements that make the tables of this `version`.

        `upgrades`: by an older version, statements that make the next one of it; other versions are refused.
        `unavailable`: what is raised where SQLite or the file system fails.
        """
        self._path = path
        self._schema = schema
        self._version = version
        self._synchronous = synchronous
        self._unavailable = unavailable
        self._upgrades = upgrades or {}
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"sqlite-{path.name}")

    async def read(self, work: Work[T]) -> T:
        """`work` in a transaction that only reads. Raises `unavailable`, and what `work` raises."""
        return await self._run(work, "BEGIN")

    async def write(self, work: Work[T]) -> T:
        """`work` in a transaction that no other writer interleaves with; rolled back when it raises. Raises as `read`.

        A caller who is cancelled does not stop it.
        """
        return await self._run(work, "BEGIN IMMEDIATE")

    async def close(self) -> None:
        """Idempotent; the database cannot be used again."""
        await asyncio.to_thread(self._thread.shutdown)
        self._disconnect()

    async def _run(self, work: Work[T], begin: str) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._transact, work, begin)
        except (sqlite3.Error, OSError) as error:
            raise self._unavailable(f"SQLite: {error}") from error

    def _transact(self, work: Work[T], begin: str) -> T:
        try:
            connection = self._connect()
            connection.execute(begin)
            try:
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error:
            self._disconnect()
            raise
        return result

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # SQLite would make it readable by all; its side files take over the mode of this one.
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            self._connection = sqlite3.connect(
                self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._prepare(self._connection)
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        _switch_to_wal(connection)
        connection.execute(f"PRAGMA synchronous={self._synchronous}")
        connection.execute("BEGIN IMMEDIATE")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        while found != self._version:
            if found and found not in self._upgrades:
                raise sqlite3.DatabaseError(f"{self._path.name} has version {found}, not {self._version}")
            statements, found = (self._upgrades[found], found + 1) if found else (self._schema, self._version)
            for statement in statements.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={found}")
        connection.execute("COMMIT")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Readers do not wait for a writer then. SQLite does not wait for other processes in this one statement."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)

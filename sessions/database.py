"""A SQLite file: exact across the processes of one host, and no package to install.

It is used on a thread of its own. A small transaction costs a fraction of handing it to that thread, so those of a
`prompt` database run where they are asked for, unless somebody else is just writing, or they are said to be `long`.
They never wait for the disk: what syncs, moving the log into the file, is left to the thread.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

T = TypeVar("T")

BUSY_SECONDS = (
    1.0  # how long to wait for other writers; a transaction of theirs takes well under a millisecond
)
PAGE = 1024  # bytes; a small transaction writes half a dozen pages, of a few hundred bytes each that have changed
MOST_LOGGED = 4000  # transactions, some seven kilobytes each; writers wait for the end of each move
Synchronous = Literal["OFF", "NORMAL"]
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
        synchronous: Synchronous,
        unavailable: type[Exception],
        upgrades: Mapping[int, str] | None = None,
        prompt: bool = False,
    ) -> None:
        """`schema`: statements that make the tables of this `version`. `prompt`: most transactions are small.

        `upgrades`: by an older version, statements that make the next one of it; other versions are refused.
        `unavailable`: what is raised where SQLite or the file system fails.
        """
        self._unavailable = unavailable
        self._file = _File(path, schema, version, synchronous, upgrades or {}, BUSY_SECONDS)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"sqlite-{path.name}")
        self._here: _File | None = None  # the event loop's own
        if prompt:
            self._here = _File(path, schema, version, synchronous, upgrades or {}, 0.0)
        self._logged = 0  # transactions since the log was moved into the file
        # What the thread still does, though nobody waits for it any more.
        self._left: set[Future[Any]] = set()

    async def read(self, work: Work[T], *, long: bool = False) -> T:
        """`work` in a transaction that only reads. Raises `unavailable`, and what `work` raises."""
        return await self._run(work, "BEGIN", long)

    async def write(self, work: Work[T], *, long: bool = False) -> T:
        """`work` in a transaction that no other writer interleaves with; rolled back when it raises. Raises as `read`.

        A caller who is cancelled does not stop it, and whatever is asked for after that comes after it.
        """
        return await self._run(work, "BEGIN IMMEDIATE", long)

    async def close(self) -> None:
        """Idempotent; the database cannot be used again."""
        here, self._here = self._here, None
        if here is not None:
            here.close()
        await asyncio.to_thread(self._thread.shutdown)
        self._file.close()

    async def _run(self, work: Work[T], begin: str, long: bool) -> T:
        try:
            if self._here is not None and self._file.is_open and not long and not self._left:
                with suppress(_Busy):
                    return self._run_here(self._here, work, begin)
            return await self._run_there(work, begin)
        except (sqlite3.Error, OSError) as error:
            raise self._unavailable(f"SQLite: {error}") from error

    async def _run_there(self, work: Work[T], begin: str) -> T:
        running = self._thread.submit(self._file.transact, work, begin)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            self._left.add(running)
            running.add_done_callback(self._left.discard)
            raise

    def _run_here(self, file: "_File", work: Work[T], begin: str) -> T:
        self._logged += 1
        if self._logged >= MOST_LOGGED:
            self._logged = 0
            asyncio.get_running_loop().run_in_executor(self._thread, self._file.move_log)
        try:
            return file.transact(work, begin)
        except sqlite3.OperationalError as error:
            if _is_busy(error):
                raise _Busy from error
            raise


class _Busy(Exception):
    """Somebody else is writing."""


class _File:
    """One connection, opened when it is needed. `patience`: seconds that it waits for other writers."""

    def __init__(
        self,
        path: Path,
        schema: str,
        version: int,
        synchronous: Synchronous,
        upgrades: Mapping[int, str],
        patience: float,
    ) -> None:
        self._path = path
        self._schema = schema
        self._version = version
        self._synchronous = synchronous
        self._upgrades = upgrades
        self._patience = patience
        self._connection: sqlite3.Connection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def transact(self, work: Work[T], begin: str) -> T:
        """Raises sqlite3.Error, after which the connection is a new one, OSError, and what `work` raises."""
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
        except sqlite3.Error as error:
            if not _is_busy(error):
                self.close()
            raise
        return result

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make(self._path)
            connection = sqlite3.connect(
                self._path, timeout=self._patience, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA page_size={PAGE}")  # of a new file; others keep theirs
        _switch_to_wal(connection, self._patience)
        connection.execute(f"PRAGMA synchronous={self._synchronous}")
        if not self._patience:
            connection.execute("PRAGMA wal_autocheckpoint=0")
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

    def move_log(self) -> None:
        """Move the log into the file and begin it anew, which syncs both. What fails is done another time.

        Most of it is done beside writers, the little that has come meanwhile without them.
        """
        with suppress(sqlite3.Error, OSError):
            for mode in ("PASSIVE", "RESTART"):
                self._connect().execute(f"PRAGMA wal_checkpoint({mode})")
            same = f"PRAGMA user_version={self._version}"
            self.transact(lambda connection: connection.execute(same), "BEGIN IMMEDIATE")

    def close(self) -> None:
        """Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _make(path: Path) -> None:
    """SQLite would make it readable by all; its side files take over the mode of this one.

    One that is there is not touched: closing any descriptor of a file lets go of all locks that the process has on it
    (fcntl(2), "Record locking"; sqlite.org/howtocorrupt.html, 2.2). Without them another process, when it closes the
    database, takes itself for the last one and removes the log that this process goes on writing to.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else is writing. The code has details above its lowest byte; our own errors have none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _switch_to_wal(connection: sqlite3.Connection, patience: float) -> None:
    """Readers do not wait for a writer then. SQLite does not wait for other processes in this one statement."""
    deadline = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)

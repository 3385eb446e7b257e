"""A SQLite file on a thread: transactions, and what is left after an error."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sessions.database import Database, Synchronous

SCHEMA = "CREATE TABLE word (text TEXT NOT NULL); CREATE INDEX word_text ON word (text)"


class Down(Exception):
    """What these tests call an unavailable store."""


def database_at(path: Path, synchronous: Synchronous = "NORMAL") -> Database:
    return Database(path, SCHEMA, version=1, synchronous=synchronous, unavailable=Down)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = database_at(tmp_path / "words.sqlite")
    yield database
    await database.close()


@pytest.fixture
async def unsynced(tmp_path: Path) -> AsyncIterator[Database]:
    database = database_at(tmp_path / "words.sqlite", "OFF")
    await database.write(insert)  # what opens the file is left to the thread
    yield database
    await database.close()


async def thread_of(database: Database) -> int:
    return await database.write(lambda _: threading.get_ident())


def insert(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO word VALUES ('hello')")


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM word").fetchone()[0])


async def test_work_that_raises_changes_nothing(database: Database) -> None:
    await database.write(insert)

    def insert_and_fail(connection: sqlite3.Connection) -> None:
        insert(connection)
        raise LookupError("no such luck")

    with pytest.raises(LookupError, match="no such luck"):
        await database.write(insert_and_fail)
    assert await database.read(count) == 1


async def test_errors_of_sqlite_are_the_stores(database: Database) -> None:
    with pytest.raises(Down, match="SQLite: no such table"):
        await database.write(lambda connection: connection.execute("INSERT INTO nowhere VALUES (1)"))
    await database.write(insert)
    assert await database.read(count) == 1


async def test_everything_runs_on_one_thread_that_is_not_the_event_loops(database: Database) -> None:
    threads = await asyncio.gather(*(database.read(lambda _: threading.get_ident()) for _ in range(10)))
    assert len(set(threads)) == 1 and threads[0] != threading.get_ident()


async def test_reading_does_not_wait_for_another_process_that_writes(
    database: Database, tmp_path: Path
) -> None:
    await database.write(insert)
    writer = sqlite3.connect(tmp_path / "words.sqlite", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM word")
    assert await asyncio.wait_for(database.read(count), 0.9) == 1
    writer.close()


async def test_a_file_that_another_process_is_just_making_is_waited_for(
    database: Database, tmp_path: Path
) -> None:
    """Where that one writes already and has no log yet, SQLite says at once that the file is locked."""
    other = sqlite3.connect(tmp_path / "words.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(database.write(insert))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    other.execute("ROLLBACK")
    await waiting
    other.close()
    assert await database.read(count) == 1


async def test_a_cancelled_caller_does_not_stop_what_was_begun(database: Database) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(connection: sqlite3.Connection) -> None:
        begun.set()
        go_on.wait(10)
        insert(connection)

    caller = asyncio.create_task(database.write(slowly))
    await asyncio.to_thread(begun.wait, 10)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    go_on.set()
    assert await database.read(count) == 1


async def test_closing_is_idempotent(tmp_path: Path) -> None:
    database = database_at(tmp_path / "words.sqlite")
    await database.write(insert)
    await database.close()
    await database.close()


async def test_what_is_not_synced_runs_where_it_is_asked_for(unsynced: Database) -> None:
    assert await thread_of(unsynced) == threading.get_ident()
    assert await unsynced.read(count) == 1

    def insert_and_fail(connection: sqlite3.Connection) -> None:
        insert(connection)
        raise LookupError

    with pytest.raises(LookupError):
        await unsynced.write(insert_and_fail)
    assert await unsynced.read(count) == 1


async def test_the_event_loop_does_not_wait_for_another_writer(unsynced: Database, tmp_path: Path) -> None:
    await unsynced.write(insert)
    other = sqlite3.connect(tmp_path / "words.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(unsynced.write(insert))
    for _ in range(10):
        await asyncio.sleep(0.01)  # goes on
        assert not waiting.done()
    other.execute("COMMIT")
    other.close()
    await waiting
    assert await unsynced.read(count) == 3
    assert await thread_of(unsynced) == threading.get_ident()


async def test_errors_and_the_end_of_what_is_not_synced(unsynced: Database) -> None:
    for _ in range(2):
        with pytest.raises(Down, match="SQLite: no such table"):
            await unsynced.write(lambda connection: connection.execute("INSERT INTO nowhere VALUES (1)"))
        await unsynced.write(insert)
    assert await unsynced.read(count) == 3
    await unsynced.close()
    with pytest.raises(RuntimeError):
        await unsynced.write(insert)


OPEN_AND_INSERT = """
import asyncio, sys
from pathlib import Path
from sessions.database import Database

async def main() -> None:
    schema = "CREATE TABLE word (text TEXT NOT NULL)"
    database = Database(Path(sys.argv[1]), schema, version=1, synchronous="NORMAL", unavailable=OSError)
    sys.stdin.readline()
    await database.write(lambda connection: connection.execute("INSERT INTO word VALUES ('x')"))
    await database.close()

asyncio.run(main())
"""


async def test_processes_that_open_a_new_file_together_all_succeed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "words.sqlite"
    command = [sys.executable, "-c", OPEN_AND_INSERT, str(path)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True) for _ in range(4)]
    ends = [process.communicate("\n", timeout=60)[1] for process in processes]
    assert ends == [""] * 4
    database = database_at(path)
    assert await database.read(count) == 4
    await database.close()

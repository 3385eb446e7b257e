"""A SQLite file on a thread: transactions, and what is left after an error."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sessions import database as databases
from sessions.database import Database

SCHEMA = "CREATE TABLE word (text TEXT NOT NULL); CREATE INDEX word_text ON word (text)"


class Down(Exception):
    """What these tests call an unavailable store."""


def database_at(path: Path, *, prompt: bool = False) -> Database:
    return Database(path, SCHEMA, version=1, synchronous="NORMAL", unavailable=Down, prompt=prompt)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = database_at(tmp_path / "words.sqlite")
    yield database
    await database.close()


@pytest.fixture
async def prompt(tmp_path: Path) -> AsyncIterator[Database]:
    database = database_at(tmp_path / "words.sqlite", prompt=True)
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
    assert await database.read(count) == 1  # waiting in vain would have been an error
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


async def test_small_transactions_run_where_they_are_asked_for(prompt: Database) -> None:
    assert await thread_of(prompt) == threading.get_ident()
    assert await prompt.read(count) == 1

    def insert_and_fail(connection: sqlite3.Connection) -> None:
        insert(connection)
        raise LookupError

    with pytest.raises(LookupError):
        await prompt.write(insert_and_fail)
    assert await prompt.read(count) == 1


async def test_the_event_loop_does_not_wait_for_another_writer(prompt: Database, tmp_path: Path) -> None:
    await prompt.write(insert)
    other = sqlite3.connect(tmp_path / "words.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(prompt.write(insert))
    for _ in range(10):
        await asyncio.sleep(0.01)  # goes on
        assert not waiting.done()
    other.execute("COMMIT")
    other.close()
    await waiting
    assert await prompt.read(count) == 3
    assert await thread_of(prompt) == threading.get_ident()


async def test_errors_and_the_end_of_a_prompt_database(prompt: Database) -> None:
    for _ in range(2):
        with pytest.raises(Down, match="SQLite: no such table"):
            await prompt.write(lambda connection: connection.execute("INSERT INTO nowhere VALUES (1)"))
        await prompt.write(insert)
    assert await prompt.read(count) == 3
    await prompt.close()
    with pytest.raises(RuntimeError):
        await prompt.write(insert)


async def test_the_log_does_not_grow_without_end(
    prompt: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction of this one writes a page or two; all of them together, half a thousand."""
    monkeypatch.setattr(databases, "MOST_LOGGED", 50)
    log = tmp_path / "words.sqlite-wal"
    for number in range(600):
        await prompt.write(insert)
        if number % 50 == 49:
            await asyncio.sleep(0.05)  # time for the thread
    assert log.stat().st_size < 300 * 4096
    assert await prompt.read(count) == 601


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


LEAVE = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM word').fetchall(); c.close()"


async def test_a_process_that_leaves_does_not_take_the_log_with_it(prompt: Database, tmp_path: Path) -> None:
    """It would, were the locks of this process gone, which opens the file twice."""
    await prompt.write(insert)
    path = tmp_path / "words.sqlite"
    log = path.with_name(path.name + "-wal")
    inode = log.stat().st_ino
    subprocess.run([sys.executable, "-c", LEAVE, str(path)], check=True)
    assert log.stat().st_ino == inode
    await prompt.write(insert)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count(*) FROM word").fetchone() == (3,)


async def test_a_new_file_has_small_pages_and_an_older_one_keeps_its_own(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "old.sqlite", isolation_level=None)
    old.execute("PRAGMA page_size=4096")
    old.execute("CREATE TABLE word (text TEXT NOT NULL)")
    old.execute("PRAGMA user_version=1")
    old.close()
    for name, size in (("old.sqlite", 4096), ("new.sqlite", databases.PAGE)):
        database = database_at(tmp_path / name)
        await database.write(insert)
        assert await database.read(count) == 1
        assert (await database.read(lambda c: c.execute("PRAGMA page_size").fetchone())) == (size,)
        await database.close()

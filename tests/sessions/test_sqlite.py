"""What the file of sessions promises beyond the conformance suite."""

import sqlite3
import threading
from pathlib import Path

import pytest

from sessions import Session, SessionNotFound, SessionStoreUnavailable, Turn
from sessions.retention import always
from sessions.sqlite import LONG, PURGED_AT_ONCE, SqliteSessions

HELLO = (Turn("user", "Hello"),)


async def test_expired_sessions_leave_the_file_a_few_at_a_time(tmp_path: Path) -> None:
    now = 1000.0
    sessions = SqliteSessions(tmp_path / "sessions.sqlite", always(10.0), clock=lambda: now)
    old = [(await sessions.create("acme")).id for _ in range(PURGED_AT_ONCE + 5)]
    now = 1009.999
    assert await sessions.get("acme", old[0]) == Session(old[0])
    now = 1010.0
    with pytest.raises(SessionNotFound):
        await sessions.get("acme", old[0])
    await sessions.create("umbrella")
    assert rows(tmp_path) == {"session": 6, "record": 6}
    await sessions.create("umbrella")
    assert rows(tmp_path) == {"session": 2, "record": 2}
    await sessions.close()


async def test_each_tenants_sessions_go_at_their_own_time(tmp_path: Path) -> None:
    now, lives = 1000.0, {"acme": 10.0, "umbrella": 100.0}
    sessions = SqliteSessions(tmp_path / "sessions.sqlite", lives.__getitem__, clock=lambda: now)
    await sessions.create("acme")
    theirs = await sessions.create("umbrella")
    now = 1050.0
    assert await sessions.list("acme") == ()
    assert await sessions.list("umbrella") == (theirs.id,)
    lives["umbrella"] = 5.0  # holds from the next use on
    await sessions.append("umbrella", theirs.id, HELLO, 0)
    now = 1055.0
    assert await sessions.list("umbrella") == ()
    await sessions.create("acme")
    assert rows(tmp_path) == {"session": 1, "record": 1}
    await sessions.close()


async def test_a_file_of_the_first_version_keeps_its_sessions(tmp_path: Path) -> None:
    now = 1000.0
    sessions = SqliteSessions(tmp_path / "sessions.sqlite", always(10.0), clock=lambda: now)
    session = await sessions.create("acme")
    await sessions.append("acme", session.id, HELLO, 0)
    await sessions.close()
    with sqlite3.connect(tmp_path / "sessions.sqlite") as older:
        older.executescript(
            "DROP INDEX session_expires; ALTER TABLE session DROP COLUMN expires;"
            "CREATE INDEX session_used ON session (used); PRAGMA user_version=1"
        )
    older.close()
    now += 30 * 24 * 3600 - 1
    sessions = SqliteSessions(tmp_path / "sessions.sqlite", always(10.0), clock=lambda: now)
    assert (await sessions.get("acme", session.id)).turns == HELLO
    now += 1
    with pytest.raises(SessionNotFound):
        await sessions.get("acme", session.id)
    await sessions.close()


async def test_only_what_is_long_is_left_to_the_thread(tmp_path: Path) -> None:
    """The clock is read inside of transactions, so it knows where they run."""
    threads: list[bool] = []

    def clock() -> float:
        threads.append(threading.current_thread() is threading.main_thread())
        return 1000.0

    sessions = SqliteSessions(tmp_path / "sessions.sqlite", always(10.0), clock=clock)
    await sessions.create("acme")  # opens the file
    threads.clear()
    session = await sessions.create("acme")
    await sessions.append("acme", session.id, HELLO, 0)
    assert (await sessions.get("acme", session.id)).turns == HELLO
    assert threads and all(threads)
    novel = (Turn("user", "x" * LONG),)
    threads.clear()
    await sessions.append("acme", session.id, novel, 1)
    assert threads and not any(threads)
    assert (await sessions.get("acme", session.id)).turns == HELLO + novel
    assert not threads[-1]
    await sessions.close()


def rows(folder: Path) -> dict[str, int]:
    connection = sqlite3.connect(folder / "sessions.sqlite")
    counts = {t: connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("session", "record")}
    connection.close()
    return counts


async def test_a_record_of_another_tenant_is_refused_wherever_it_lies(tmp_path: Path) -> None:
    sessions = SqliteSessions(tmp_path / "sessions.sqlite", always(60.0))
    mine, theirs = await sessions.create("acme"), await sessions.create("umbrella")
    await sessions.append("umbrella", theirs.id, HELLO, 0)
    connection = sqlite3.connect(tmp_path / "sessions.sqlite")
    with connection:
        connection.execute("DELETE FROM record WHERE tenant = 'acme'")
        connection.execute("UPDATE record SET tenant = 'acme', session = ?", (mine.id,))
    connection.close()
    with pytest.raises(SessionStoreUnavailable, match="of another session"):
        await sessions.get("acme", mine.id)
    await sessions.close()


async def test_a_damaged_file_is_never_an_empty_history(tmp_path: Path) -> None:
    path = tmp_path / "sessions.sqlite"
    sessions = SqliteSessions(path, always(60.0))
    session = await sessions.create("acme")
    await sessions.close()
    path.write_bytes(b"no database" * 1000)
    sessions = SqliteSessions(path, always(60.0))
    for attempt in (
        sessions.get("acme", session.id),
        sessions.append("acme", session.id, HELLO, 0),
        sessions.list("acme"),
        sessions.delete("acme", session.id),
        sessions.create("acme"),
    ):
        with pytest.raises(SessionStoreUnavailable, match="not a database"):
            await attempt
    await sessions.close()

"""A file of limits that is locked, damaged, or cannot be written."""

import asyncio
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.config import Limits
from gateway.limits import LEASE_SECONDS, NOTHING, LimitExceeded, LimitStoreUnavailable
from gateway.limits_sqlite import SqliteLimits
from sessions.database import BUSY_SECONDS

ONE = Limits(parallel=1)


async def test_a_locked_file_is_unavailable_and_answers_again_when_it_is_free(tmp_path: Path) -> None:
    limits = SqliteLimits(tmp_path / "limits.sqlite")
    await limits.settle(await limits.reserve("acme", ONE, "a", NOTHING), ONE, NOTHING)
    lock = sqlite3.connect(tmp_path / "limits.sqlite", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    with pytest.raises(LimitStoreUnavailable, match="locked"):
        await limits.reserve("acme", ONE, "b", NOTHING)
    assert BUSY_SECONDS <= time.monotonic() - started < BUSY_SECONDS + 60
    lock.execute("ROLLBACK")
    lock.close()
    await limits.reserve("acme", ONE, "c", NOTHING)
    await limits.close()


async def test_a_damaged_file_is_unavailable_until_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "limits.sqlite"
    path.write_bytes(b"this is no database" * 100)
    limits = SqliteLimits(path)
    for attempt in ("a", "b"):
        with pytest.raises(LimitStoreUnavailable, match="not a database"):
            await limits.reserve("acme", ONE, attempt, NOTHING)
    path.unlink()
    await limits.reserve("acme", ONE, "c", NOTHING)
    await limits.close()


async def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    limits = SqliteLimits(tmp_path / "file" / "limits.sqlite")
    with pytest.raises(LimitStoreUnavailable):
        await limits.reserve("acme", ONE, "a", NOTHING)
    await limits.close()


async def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "limits.sqlite") as other:
        other.execute("PRAGMA user_version=7")
    other.close()
    limits = SqliteLimits(tmp_path / "limits.sqlite")
    with pytest.raises(LimitStoreUnavailable, match="has version 7, not 3"):
        await limits.reserve("acme", ONE, "a", NOTHING)
    await limits.close()


async def test_a_file_of_the_first_version_is_made_anew(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "limits.sqlite") as older:
        older.executescript(
            "CREATE TABLE account (tenant TEXT); CREATE TABLE lease (tenant TEXT); PRAGMA user_version=1"
        )
    older.close()
    limits = SqliteLimits(tmp_path / "limits.sqlite")
    await limits.reserve("acme", ONE, "a", NOTHING)
    await limits.close()


async def test_a_file_of_the_second_version_keeps_its_leases(tmp_path: Path) -> None:
    now = 1000.0
    limits = SqliteLimits(tmp_path / "limits.sqlite", clock=lambda: now)
    held = await limits.reserve("acme", ONE, "a", NOTHING)
    await limits.close()
    with sqlite3.connect(tmp_path / "limits.sqlite") as older:
        older.executescript(
            "ALTER TABLE account DROP COLUMN running; ALTER TABLE account DROP COLUMN earliest;"
            "PRAGMA user_version=2"
        )
    older.close()
    limits = SqliteLimits(tmp_path / "limits.sqlite", clock=lambda: now)
    with pytest.raises(LimitExceeded):
        await limits.reserve("acme", ONE, "b", NOTHING)
    await limits.settle(held, ONE, NOTHING)
    await limits.reserve("acme", ONE, "c", NOTHING)
    now += LEASE_SECONDS
    await limits.reserve("acme", ONE, "d", NOTHING)
    await limits.close()


async def test_leases_are_counted_as_they_come_and_go(tmp_path: Path) -> None:
    """The count stands beside the leases themselves; a settled one is not the next to expire any more."""
    now, many = 1000.0, Limits(parallel=100)
    limits = SqliteLimits(tmp_path / "limits.sqlite", clock=lambda: now)
    held = []
    for number in range(5):
        held.append(await limits.reserve("acme", many, f"lease {number}", NOTHING))
        now += 10.0
    for settled in (held[0], held[3], held[3]):
        await limits.settle(settled, many, NOTHING)
    assert counted(tmp_path) == (3, 3)
    now = 1010.0 + LEASE_SECONDS  # the second one expires
    await limits.reserve("acme", many, "one more", NOTHING)
    assert counted(tmp_path) == (3, 3)
    await limits.settle(held[1], many, NOTHING)
    assert counted(tmp_path) == (3, 3)
    await limits.close()


def counted(folder: Path) -> tuple[int, int]:
    """What the account says, and what is there."""
    with sqlite3.connect(folder / "limits.sqlite") as connection:
        (told,) = connection.execute("SELECT running FROM account").fetchone()
        (there,) = connection.execute("SELECT count(*) FROM lease").fetchone()
    connection.close()
    return told, there


FULL_DISK = """
import asyncio, resource, signal, sys
from pathlib import Path
from gateway.config import Limits
from gateway.limits import NOTHING, LimitStoreUnavailable
from gateway.limits_sqlite import SqliteLimits

async def main() -> None:
    one, store = Limits(parallel=1), SqliteLimits(Path(sys.argv[1]))
    await store.settle(await store.reserve("acme", one, "a", NOTHING), one, NOTHING)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        await store.reserve("acme", one, "b", NOTHING)
    except LimitStoreUnavailable as error:
        print("refused:", error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.reserve("acme", one, "c", NOTHING)
    await store.close()

asyncio.run(main())
"""


def test_a_full_disk_is_unavailable_and_nothing_is_taken(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "limits.sqlite")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("refused: SQLite:")


async def test_what_was_taken_outlives_the_process_that_took_it(tmp_path: Path) -> None:
    first = SqliteLimits(tmp_path / "state" / "limits.sqlite")
    held = await first.reserve("acme", ONE, "a", NOTHING)
    await first.close()
    second = SqliteLimits(tmp_path / "state" / "limits.sqlite")
    with pytest.raises(LimitExceeded):
        await second.reserve("acme", ONE, "b", NOTHING)
    await second.settle(held, ONE, NOTHING)
    await second.reserve("acme", ONE, "c", NOTHING)
    await second.close()


async def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    limits = SqliteLimits(tmp_path / "state" / "limits.sqlite")
    await limits.reserve("acme", ONE, "a", NOTHING)
    folder = tmp_path / "state"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert set(files) == {"limits.sqlite", "limits.sqlite-wal", "limits.sqlite-shm"}
    assert set(files.values()) == {0o600}
    await limits.close()


async def test_the_event_loop_runs_on_while_the_file_is_locked(tmp_path: Path) -> None:
    limits = SqliteLimits(tmp_path / "limits.sqlite")
    await limits.reserve("acme", ONE, "a", NOTHING)
    lock = sqlite3.connect(tmp_path / "limits.sqlite", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(limits.reserve("acme", ONE, "b", NOTHING))
    beats = 0
    while not waiting.done():
        await asyncio.sleep(0.01)
        beats += 1
    assert isinstance(waiting.exception(), LimitStoreUnavailable)
    assert beats > 2
    lock.close()
    await limits.close()

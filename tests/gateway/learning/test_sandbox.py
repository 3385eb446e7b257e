"""Programs of strangers: only one that comes to its own last line counts, whatever else it does."""

import os
from pathlib import Path

import pytest

from gateway.learning.sandbox import runs_through


@pytest.mark.parametrize(
    "program",
    [
        "assert 1 + 1 == 2",
        "print('a' * 100_000)",
        "import math, re, collections, typing, itertools",
        "if __name__ == '__main__':\n    x = 1",
    ],
)
async def test_what_comes_to_its_end(program: str) -> None:
    assert await runs_through(program)


@pytest.mark.parametrize(
    "program",
    [
        "assert 1 + 1 == 3",
        "def f(:",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "x = 'a' * (2 << 30)",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import headrace_none",
        "import numpy",  # nothing that is installed
        "open('large', 'w').write('a' * 2_000_000)",
        "raise SystemExit",
        "print('a' * 10_000_000)",
        "\x00",
    ],
)
async def test_what_does_not(program: str) -> None:
    assert not await runs_through(program)


async def test_nobody_waits_for_ever() -> None:
    assert not await runs_through("while True: pass", timeout=0.5)
    assert not await runs_through("import time; time.sleep(60)", timeout=0.5)


async def test_nothing_of_it_is_left(tmp_path: Path) -> None:
    """What it starts ends with it, and so does its folder."""
    mark = tmp_path / "mark"
    program = (
        "import os, time\n"
        f"open({str(mark)!r}, 'w').write(os.getcwd())\n"
        "try:\n    child = os.fork()\nexcept OSError:\n    child = 1\n"
        "if not child: time.sleep(30)"
    )
    await runs_through(program, timeout=10)
    folder = Path(mark.read_text())
    assert not folder.exists()
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _working_in(pid) == str(folder)]


async def test_it_knows_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SECRET", "s")
    assert await runs_through("import os; assert 'HEADRACE_SECRET' not in os.environ")


def _working_in(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""

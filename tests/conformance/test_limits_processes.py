"""Several real processes, one store: together they get exactly the allowance."""

import subprocess
import sys
from pathlib import Path

import pytest

PROCESSES = 4
TRIES = 200
SCRIPT = Path(__file__).with_name("limits_process.py")


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@pytest.mark.parametrize(
    ("requests", "tokens", "parallel"),
    [(250, 10**6, 10**6), (10**6, 2_509, 10**6), (10**6, 10**6, 250)],
    ids=["requests", "tokens", "parallel"],
)
def test_processes_get_exactly_the_allowance_between_them(
    kind: str, requests: int, tokens: int, parallel: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where = request.getfixturevalue("redis").url if kind == "redis" else str(tmp_path / "limits.sqlite")
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), where, str(n), *map(str, (TRIES, requests, tokens, parallel))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES, outputs
    assert sum(int(out) for out, _ in outputs) == 250, outputs

"""Several real processes, one store: together they get exactly the allowance."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROCESSES = 4
TRIES = 200
SCRIPT = Path(__file__).with_name("limits_process.py")


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@pytest.mark.parametrize(
    "binding",
    [
        {"requests_per_minute": 250},
        {"tokens_per_minute": 2_509},
        {"parallel": 250},
        {"budget": {"per_month": 2_509e-9}},
    ],
    ids=["requests", "tokens", "parallel", "budget"],
)
def test_processes_get_exactly_the_allowance_between_them(
    kind: str, binding: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    generous = {"requests_per_minute": 10**6, "tokens_per_minute": 10**6, "parallel": 10**6}
    limits = json.dumps({**generous, **binding})
    where = request.getfixturevalue("redis").url if kind == "redis" else str(tmp_path / "limits.sqlite")
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), where, str(n), str(TRIES), limits],
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

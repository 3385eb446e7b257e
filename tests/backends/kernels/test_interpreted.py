"""The Triton kernels equal plain torch, and so does what is built on them, under the interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDERS = {
    "kernels": HERE / "interpreted",
    "engine": HERE.parent / "engine" / "interpreted",
    "models": HERE.parent / "models" / "packed" / "interpreted",
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_under_the_interpreter(folder: Path, marked: str) -> None:
    """In a process of its own: Triton looks at the variable when a kernel is defined."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marked, str(folder)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert done.returncode == 0, done.stdout + done.stderr

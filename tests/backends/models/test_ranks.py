"""Several ranks compute what one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).with_name("ranks")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_among_ranks(marked: str) -> None:
    """In a process of its own: to all that asks torch, transformers too, the first rank is one of several as long as
    the others live."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marked, str(FOLDER)],
        # What is freed goes back at once: what the allocator keeps differs from run to run, and peaks are measured.
        env={**os.environ, "HEADRACE_TEST_RANKS": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)},
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert done.returncode == 0, done.stdout + done.stderr

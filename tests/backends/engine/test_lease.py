import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backends.engine.lease import Lease

HOLDER = """
import sys
from pathlib import Path
from backends.engine.lease import Lease
lease = Lease(Path(sys.argv[1]), 4)
lease.take()
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Callable[[int], Lease]]:
    made: list[Lease] = []

    def make(cores: int) -> Lease:
        made.append(Lease(tmp_path / "lease", cores))
        return made[-1]

    yield make
    for lease in made:
        lease.close()


@pytest.mark.parametrize(
    ("cores", "others", "threads"),
    [
        (1, 0, 1),
        (1, 2, 1),
        (2, 0, 2),
        (2, 1, 1),
        (2, 5, 1),
        (8, 0, 8),
        (8, 1, 4),
        (8, 2, 2),
        (8, 7, 1),
        (8, 20, 1),
    ],
)
def test_cores_are_shared_among_those_that_work(
    lease: Callable[[int], Lease], cores: int, others: int, threads: int
) -> None:
    mine = lease(cores)
    for other in [lease(cores) for _ in range(others)]:
        other.take()
    assert mine.threads() == threads  # before it works itself: what it would get
    mine.take()
    assert mine.threads() == threads


def test_who_rests_does_not_count(lease: Callable[[int], Lease]) -> None:
    mine, other = lease(4), lease(4)
    other.take()
    other.take()
    assert mine.threads() == 2
    other.release()
    other.release()
    assert mine.threads() == 4


def test_a_closed_lease_does_not_count(lease: Callable[[int], Lease]) -> None:
    mine, other = lease(4), lease(4)
    other.take()
    other.close()
    other.close()
    assert mine.threads() == 4


def test_an_engine_that_was_killed_does_not_count(lease: Callable[[int], Lease], tmp_path: Path) -> None:
    mine = lease(4)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lease")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        assert mine.threads() == 2
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert mine.threads() == 4


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Lease(tmp_path / "nowhere" / "lease", 2)

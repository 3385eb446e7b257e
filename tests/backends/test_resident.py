"""What is mapped of files leaves the process's memory; what was written stays as it is, in pages of whatever size."""

import mmap
import re
from pathlib import Path

import pytest

from backends.resident import Mapping, give_back, into_large_pages, mappings

SIZE = 32 << 20
SMAPS = Path("/proc/self/smaps")

pytestmark = pytest.mark.skipif(not SMAPS.exists(), reason="only Linux tells what a process has mapped")


def told_of_large_pages() -> str:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return path.read_text() if path.exists() else ""


def megabytes_of_files() -> float:
    found = re.search(r"RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    return path


def test_pages_of_a_file_that_was_read_are_no_longer_in_memory_and_can_be_read_again(path: Path) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as data:
        content = data[:]
        before = megabytes_of_files()
        give_back()
        assert before - megabytes_of_files() > 30
        assert data[:] == content


def test_few_pages_may_stay(path: Path) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as data:
        assert len(data[:]) == SIZE
        before = megabytes_of_files()
        give_back(beyond=1 << 40)
        assert megabytes_of_files() >= before
        give_back(beyond=SIZE // 2)
        assert megabytes_of_files() < before - 30


@pytest.mark.parametrize("access", [mmap.ACCESS_COPY, mmap.ACCESS_WRITE])
def test_what_was_written_to_a_mapping_of_a_file_stays(path: Path, access: int) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=access) as data:
        data[SIZE // 2] = 77
        give_back()
        assert data[SIZE // 2] == 77
        assert data[SIZE // 2 + 1] == 1


def test_memory_of_no_file_stays() -> None:
    with mmap.mmap(-1, SIZE) as data:
        data[:] = b"x" * SIZE
        give_back()
        assert data[:] == b"x" * SIZE


def test_mappings_are_those_of_files_that_nothing_was_written_to() -> None:
    told = """\
7f0000000000-7f0000001000 r-xp 00000000 fe:00 12                         /usr/lib/a library.so
Rss:                   4 kB
Anonymous:             0 kB
7f0000001000-7f0000002000 r--p 00001000 fe:00 12                         /usr/lib/a library.so
Rss:                   4 kB
Anonymous:             4 kB
55e000000000-55e000001000 rw-p 00000000 00:00 0                          [heap]
Rss:                   0 kB
Anonymous:             0 kB
7f0000003000-7f0000004000 rw-p 00000000 00:00 0 
Anonymous:             0 kB
"""
    assert list(mappings(told)) == [Mapping(0x7F0000000000, 0x7F0000001000, "/usr/lib/a library.so")]


@pytest.mark.skipif(
    "[madvise]" not in told_of_large_pages() or mmap.PAGESIZE != 4096,
    reason="this kernel makes no large pages of that size, or makes them by itself",
)
def test_what_was_written_lies_in_large_pages_and_is_the_same() -> None:
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as data:
        data[:] = content = bytes(range(256)) * (SIZE // 256)
        before = in_large_pages()
        into_large_pages()
        assert data[:] == content
        assert in_large_pages() - before > SIZE // 2


def in_large_pages() -> int:
    """Bytes of this process."""
    found = re.search(r"AnonHugePages:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    assert found is not None
    return 1024 * int(found[1])

"""What this process has in memory, and in pages of what size.

As long as a page of a file that is mapped was touched once, it counts as memory of the process. So a model's file would
stand beside the weights made of it, and so does the code that only starting needs: linking the compiled kernels touches
most of LLVM. Given back, a page that is needed once more is mapped again from the file, which the kernel still has in
its cache.

What is of use for long and read all over, as the heap of a program, is found faster in large pages, since a processor
remembers only so many: a gateway with tokenizers in it answers 0.2 ms sooner at 100 requests a second.
"""

import ctypes
import mmap
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

# See proc(5).
_STATM, _SMAPS, _MAPS = Path("/proc/self/statm"), Path("/proc/self/smaps"), Path("/proc/self/maps")

_COLLAPSE = 25  # of madvise(2), since Linux 6.1
LARGE = 2 << 20  # bytes of a large page where small ones have 4 KiB

# Of smaps: a line for each mapping, then lines of what is in it.
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s*(.*)")
_WRITTEN = "Anonymous:"  # pages of it that are no longer the file's


class Mapping(NamedTuple):
    """Bytes from `start` to `end` of the address space are `path`'s, none of them written to since."""

    start: int
    end: int
    path: str


def give_back(beyond: int = 0) -> None:
    """Let the kernel have all pages that are only read from files, where these are more than `beyond` bytes. Where this
    isn't Linux, nothing happens."""
    if not _SMAPS.exists() or _shared() <= beyond:
        return
    advise = _madvise()
    for mapping in mappings(_SMAPS.read_text(errors="surrogateescape")):
        if os.path.isfile(mapping.path):  # a device's memory could not be mapped again
            # It may refuse, as of pages that are locked: then they stay.
            advise(mapping.start, mapping.end - mapping.start, mmap.MADV_DONTNEED)


def into_large_pages() -> None:
    """Have what this process has written by now copied into large pages. It may be slow, and where the kernel makes
    none, nothing happens."""
    if not _MAPS.exists():
        return
    advise = _madvise()
    for start, end in _written(_MAPS.read_text(errors="surrogateescape")):
        start, end = -(-start // LARGE) * LARGE, end // LARGE * LARGE
        if start < end:
            advise(start, end - start, _COLLAPSE)


def _written(maps: str) -> Iterator[tuple[int, int]]:
    """Where the heap is, and other memory of no file."""
    for line in maps.splitlines():
        where, rights, _, _, inode, *name = line.split(maxsplit=5)
        if rights == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
            start, _, end = where.partition("-")
            yield int(start, 16), int(end, 16)


def _madvise() -> Callable[[int, int, int], int]:
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise


def _shared() -> int:
    """Bytes of files in the memory of this process, and of what it shares with others."""
    return int(_STATM.read_text().split()[2]) * mmap.PAGESIZE


def mappings(smaps: str) -> Iterator[Mapping]:
    """What `smaps` tells of files of which no page was written to."""
    mapping: Mapping | None = None
    for line in smaps.splitlines():
        if found := _MAPPING.fullmatch(line):
            start, end, path = found.groups()
            mapping = Mapping(int(start, 16), int(end, 16), path)
        elif mapping is not None and mapping.path.startswith("/") and line.startswith(_WRITTEN):
            if line.split()[1] == "0":
                yield mapping

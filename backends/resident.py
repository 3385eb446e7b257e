"""What this process has mapped of files: as long as a page of it was touched once, it counts as memory of the process.

So a model's file would stand beside the weights made of it, and so does the code that only starting needs: linking the
compiled kernels touches most of LLVM. Given back, a page that is needed once more is mapped again from the file, which
the kernel still has in its cache.
"""

import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# See proc(5).
_STATM, _SMAPS = Path("/proc/self/statm"), Path("/proc/self/smaps")

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
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for mapping in mappings(_SMAPS.read_text(errors="surrogateescape")):
        if os.path.isfile(mapping.path):  # a device's memory could not be mapped again
            # It may refuse, as of pages that are locked: then they stay.
            advise(mapping.start, mapping.end - mapping.start, mmap.MADV_DONTNEED)


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

"""The core lease: the engines of one host agree on how many threads each may use.

Two engines with two spinning threads each on two cores are ten times slower than with one thread each. So an
engine that works holds a lock on one byte of a shared file, and looks how many others do the same. The kernel
drops the locks of a process that dies; nobody has to clean up, and no byte can be stale. The file stays empty:
locks may lie beyond its end (fcntl(2), "open file description locks").
"""

import fcntl
import os
import secrets
import struct
from pathlib import Path

_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, pid (0 for this kind of lock)
_END = 2**62  # places are drawn below it at random, so two engines never meet on one


class Lease:
    """One engine's share in the cores of its host. Costs a system call or a few; Linux only."""

    def __init__(self, path: Path, cores: int) -> None:
        """`cores`: threads when no other engine works. Raises OSError when the file cannot be opened."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._cores = cores
        self._place = secrets.randbelow(_END)
        self._held = False

    def take(self) -> None:
        """This engine works from now on. Taking it twice is taking it once."""
        if not self._held:
            self._set(fcntl.F_WRLCK)
            self._held = True

    def release(self) -> None:
        """This engine rests."""
        if self._held:
            self._set(fcntl.F_UNLCK)
            self._held = False

    def threads(self) -> int:
        """All cores when this engine works alone; else an equal share, at least one."""
        return max(1, self._cores // (1 + self._others()))

    def close(self) -> None:
        """Idempotent; releases the lease."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._held = False

    def _others(self) -> int:
        """How many other engines work. Counting ends where the share cannot become any smaller.

        The kernel names any one lock within a range, so what lies left and right of it is asked next.
        """
        found = 0
        ranges = [(0, _END)]
        while ranges and 1 + found < self._cores:
            start, end = ranges.pop()
            place = self._locked(start, end)
            if place is not None:
                found += 1
                ranges += [(a, b) for a, b in ((start, place), (place + 1, end)) if a < b]
        return found

    def _locked(self, start: int, end: int) -> int | None:
        """A byte within [start, end) that another engine has locked."""
        ask = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
        kind, _, place, _, _ = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, ask))
        return None if kind == fcntl.F_UNLCK else int(place)

    def _set(self, kind: int) -> None:
        lock = _FLOCK.pack(kind, os.SEEK_SET, self._place, 1, 0)
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, lock)

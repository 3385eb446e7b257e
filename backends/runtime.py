"""A private folder for the sockets and files of running processes, which does not outlive its owner for long."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "headrace-"
LOCK = "lock"


class RuntimeFolder:
    """Made at once, mode 0700, in the folder for temporary files.

    The owner holds a lock on a file in it. An owner that was killed leaves the folder behind, but not the lock: so
    whoever makes the next folder can tell, and removes it.
    """

    def __init__(self) -> None:
        sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """With everything in it. Idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def sweep() -> None:
    """Remove folders of this user whose owners are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / LOCK, os.O_RDWR)
        except OSError:
            continue  # another's, or just being made or removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # in use
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)

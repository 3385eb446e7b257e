"""Whether what takes long to find can be written in the end: known before it begins."""

import errno
import os
from pathlib import Path


def check_file(path: Path) -> None:
    """Raises OSError where no file can be written there."""
    if path.is_dir():
        raise _error(errno.EISDIR, path)
    if not path.parent.is_dir():
        raise _error(errno.ENOENT, path.parent)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise _error(errno.EACCES, path)


def check_folder(path: Path) -> None:
    """Raises OSError where it is no folder and none can be made there."""
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise _error(errno.ENOTDIR, there)
    if not os.access(there, os.W_OK):
        raise _error(errno.EACCES, there)


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))

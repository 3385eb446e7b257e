"""Run a Python file with little to break: `python -I -S confined.py FILE`. It needs the standard library alone.

Before the file's first line this process gives up processor time, memory, the size of files, children and, where the
kernel lets it, the network. The file becomes the process, so that nothing of this module is left in it.
"""

import ctypes
import os
import resource
import sys

SECONDS = 5  # of the processor
MEMORY = 1 << 30  # bytes of addresses
FILE = 1 << 20  # bytes of a file
FILES = 32  # open at a time
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # of unshare(2)


def confine() -> None:
    for what, most in (
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, FILE),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    # A namespace with no interface but its own loopback. Where users may make none, the file keeps the network.
    if sys.platform == "linux":
        ctypes.CDLL(None).unshare(NEW_USER | NEW_NETWORK)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # does not bind root


if __name__ == "__main__":
    confine()
    os.execv(sys.executable, [sys.executable, "-I", "-S", sys.argv[1]])

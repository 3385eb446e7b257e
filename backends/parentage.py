"""Processes that end with the one that started them."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Be killed when `parent` ends, however it ends; see prctl(2), PR_SET_PDEATHSIG.

    Raises SystemExit if it has ended already, OSError where the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which started this one, is gone")

"""A benchmark that runs an engine in its own process has memory as engines have theirs."""

import os
import sys

from backends.supervisor import HUGE_PAGES


def as_engines_are_started(module: str) -> None:
    """Starts this process anew, as `module` with the same arguments, unless it has the settings already: glibc and
    torch read them when a process starts."""
    if not HUGE_PAGES.items() <= os.environ.items():
        command = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | HUGE_PAGES)

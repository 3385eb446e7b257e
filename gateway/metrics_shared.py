"""Metrics that several processes of one gateway count together.

Each process counts in memory-mapped files of its own in one folder, by the multiprocess mode of prometheus_client; who
looks adds them up. So a process that is killed takes no count with it, and the one that comes in its place, under the
same name, goes on from where it ended.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import Metric, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector


def count_in(folder: Path, name: str) -> None:
    """From here on this process counts in `folder`; to be called before its first metric is made.

    `name`: no other process has it at the same time; without underscores, as it is a part of files' names.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)  # where the library looks for it
    values.ValueClass = values.MultiProcessValue(lambda: name)  # type: ignore[no-untyped-call]


def bury(folder: Path, name: str) -> None:
    """The process of this name has ended: what it counted stays, what it measured is true no more."""
    mark_process_dead(name, str(folder))  # type: ignore[no-untyped-call]


class SharedMetrics(Collector):
    """What all processes have counted in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        files = [str(file) for file in self._folder.glob("*.db") if _begun(file)]
        merged: Iterable[Metric] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return merged


def _begun(file: Path) -> bool:
    """Not one that is just being made, or that has just gone with its process."""
    try:
        return file.stat().st_size > 0
    except FileNotFoundError:
        return False

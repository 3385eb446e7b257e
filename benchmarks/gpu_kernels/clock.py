"""How long something takes on a device."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Clock:
    """Medians. `device`: on a GPU its own events are read, and its cache is emptied between the runs."""

    device: torch.device
    runs: int = 3  # elsewhere

    def seconds(self, job: Callable[[], Any]) -> float:
        if self.device.type == "cuda":
            from triton.testing import do_bench

            return float(do_bench(job, return_mode="median")) / 1e3
        return median(self._once(job) for _ in range(self.runs))

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _once(self, job: Callable[[], Any]) -> float:
        started = time.perf_counter()
        job()
        return time.perf_counter() - started

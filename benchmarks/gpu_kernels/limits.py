"""What a GPU could do at the most: by its maker's data sheet where it is known, else by a copy and a product."""

import re
from dataclasses import dataclass, field

import torch

from benchmarks.gpu_kernels.case import Case, Kind
from benchmarks.gpu_kernels.clock import Clock
from gateway.planning.gpus import GPUS, Gpu

OTHER_BOARDS = {"pcie", "nvl"}  # slower than those that `GPUS` has the figures of


@dataclass(frozen=True, slots=True)
class Limits:
    """`bandwidth` in bytes and `rates` in operations a second, by the type of products; `source` in words."""

    bandwidth: float
    rates: dict[Kind, float] = field(default_factory=dict)
    source: str = "data sheet"

    def seconds(self, case: Case) -> tuple[float, str]:
        """The least time that a case can take, and what it is that takes it."""
        moving = case.bytes / self.bandwidth
        rate = self.rates.get(case.kind)
        if rate is None or case.operations / rate <= moving:
            return moving, "bandwidth"
        return case.operations / rate, f"{case.kind} rate"


def known(name: str) -> Gpu | None:
    """The GPU that a driver calls so, such as "NVIDIA A100-SXM4-80GB"."""
    words = set(re.split(r"[\s-]+", name.lower()))
    if words & OTHER_BOARDS:
        return None
    fitting = (
        gpu for gpu in GPUS.values() if all({part, f"{part}b"} & words for part in gpu.name.split("-"))
    )
    return next(fitting, None)


def of_data_sheet(gpu: Gpu) -> Limits:
    """Types that a GPU does not have run as fp16, and so have its rate."""
    kinds: tuple[Kind, ...] = ("fp16", "int8", "fp8")
    return Limits(
        gpu.bandwidth * 1e9, {kind: gpu.rate(kind) * 1e12 for kind in kinds}, f"data sheet of {gpu.name}"
    )


def measured(device: torch.device, dtype: torch.dtype, clock: Clock, *, tiny: bool) -> Limits:
    """By a copy of 1 GiB, and a product of 8192 × 8192 numbers of `dtype`; others are not measured."""
    source = torch.ones(1 << 20 if tiny else 1 << 28, device=device)
    target = torch.empty_like(source)
    copying = clock.seconds(lambda: target.copy_(source))
    size = 256 if tiny else 8192
    square = torch.ones(size, size, device=device, dtype=dtype)
    multiplying = clock.seconds(lambda: square @ square)
    return Limits(2 * source.nbytes / copying, {"fp16": 2.0 * size**3 / multiplying}, "a copy and a product")

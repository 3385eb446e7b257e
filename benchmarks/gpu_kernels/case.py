"""One kernel at one shape: what it must equal, and what the hardware would need for it at the least."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

Kind = Literal["fp16", "int8", "fp8"]  # of matrix products, as `gateway.planning.gpus` has their rates
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the cases run, in which type, and how large: `tiny` for the interpreter, `quick` for fewer shapes."""

    device: torch.device
    dtype: torch.dtype
    tiny: bool = False
    quick: bool = False
    has_float8: bool = True  # products of it

    def size(self, full: int, tiny: int) -> int:
        return tiny if self.tiny else full

    def normal(self, *shape: int) -> torch.Tensor:
        """Of the setting's type."""
        return torch.randn(*shape, device=self.device).to(self.dtype)


@dataclass(frozen=True, slots=True)
class Case:
    """`check` gives what the kernels make and what they should; `run` is what is timed, and may change its inputs.

    `bytes`: what has to be read and written once; `operations`: of matrix products, two for a multiply-add.
    `tolerance`: the largest difference, beside the largest number that should be; 0: bit by bit.
    """

    name: str
    kernels: tuple[str, ...]
    check: Callable[[], tuple[Tensors, Tensors]]
    run: Callable[[], object]
    bytes: float
    tolerance: float
    operations: float = 0.0
    kind: Kind = "fp16"


def error(ours: Tensors, plain: Tensors) -> float:
    """The largest difference of all, as `Case.tolerance` counts it. NaN where one of ours is NaN and should not be;
    infinite where shapes differ."""
    return max((_error(*pair) for pair in zip(ours, plain, strict=True)), default=0.0)


def _error(ours: torch.Tensor, plain: torch.Tensor) -> float:
    if ours.shape != plain.shape:
        return float("inf")
    first, second = ours.double(), plain.double()
    if torch.equal(first, second):
        return 0.0
    first, second = (
        each.nan_to_num(0.0, 0.0, 0.0) if _same_gaps(first, second) else each for each in (first, second)
    )
    return float((first - second).abs().max() / second.abs().max().clamp(min=1e-30))


def _same_gaps(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether what is not finite is the same in both: minus infinity is what sampling leaves out."""
    gaps = ~second.isfinite()
    return bool(torch.equal(gaps, ~first.isfinite()) and torch.equal(first[gaps], second[gaps]))

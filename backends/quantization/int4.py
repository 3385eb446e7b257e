"""Weights of four bits in groups of 32 neighbours of a row: integer · scale + minimum.

GGUF's formats of four bits are that already, and lose nothing. Whole weights are rounded to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from backends.quantization.gguf import dequantize, groups_of_four_bits

GROUP = 32
_HIGHEST = 15


@dataclass(frozen=True, slots=True)
class FourBits:
    """`integers` uint8 [rows, columns] of 0 … 15; `scales` and `minima` float32 [rows, columns / 32]."""

    integers: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor

    def dequantized(self) -> torch.Tensor:
        """float32 [rows, columns]. Two operations, as in `quantization.gguf`, whose results these equal."""
        groups = self.integers.view(*self.scales.shape, GROUP).float()
        weights = groups.mul_(self.scales.unsqueeze(-1)).add_(self.minima.unsqueeze(-1))
        return weights.view(self.integers.shape)


def stacked(parts: Sequence[FourBits]) -> FourBits:
    """Rows below rows."""
    fields = ([getattr(part, name) for part in parts] for name in ("integers", "scales", "minima"))
    return FourBits(*(torch.cat(each) for each in fields))


def kept(raw: torch.Tensor, type: str) -> FourBits:
    """Rows of GGUF blocks, uint8 [rows, bytes of a row], as they are. Raises ValueError where `type` is none of
    `gguf.FOUR_BITS`."""
    integers, scales, minima = groups_of_four_bits(raw, type)
    rows = len(raw)
    return FourBits(integers.view(rows, -1), scales.view(rows, -1), minima.view(rows, -1))


def rounded(weight: torch.Tensor) -> FourBits:
    """Whole weights [rows, columns], columns a multiple of 32, to the nearest of sixteen steps between the least and
    the largest of each group. Raises ValueError for weights that are not finite."""
    groups = weight.float().view(len(weight), -1, GROUP)
    if not groups.isfinite().all():
        raise ValueError("int4: a weight is not finite")
    least, most = groups.aminmax(dim=2)
    scales, minima = ((most - least) / _HIGHEST).half().float(), least.half().float()
    steps = (groups - minima.unsqueeze(-1)) / scales.clamp(min=1e-30).unsqueeze(-1)
    integers = steps.round_().clamp_(0, _HIGHEST).to(torch.uint8)
    return FourBits(integers.view(weight.shape), scales, minima)


def whole(raw: torch.Tensor, type: str) -> FourBits:
    """Rows of any other format, rounded."""
    return rounded(dequantize(raw, type, torch.float32))

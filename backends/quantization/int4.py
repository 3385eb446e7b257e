"""Weights of four bits in groups of 32 neighbours of a row: integer · scale + minimum.

GGUF's formats of four bits are that already, and so are larger groups; they lose nothing. Whole weights are rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from backends.quantization.gguf import dequantize, groups_of_four_bits
from backends.quantization.grouped import Grouped

GROUP = 32
_HIGHEST = 15


@dataclass(frozen=True, slots=True)
class FourBits:
    """`integers` uint8 [rows, columns] of 0 … 15; `scales` and `minima` float32 [rows, columns / 32].

    `order` int64 [columns]: which input each column is multiplied by; None: its own.
    """

    integers: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor
    order: torch.Tensor | None = None

    def dequantized(self) -> torch.Tensor:
        """float32 [rows, columns]. Two operations, as in `quantization.gguf`, whose results these equal."""
        groups = self.integers.view(*self.scales.shape, GROUP).float()
        groups = groups.mul_(self.scales.unsqueeze(-1)).add_(self.minima.unsqueeze(-1))
        weights = groups.view(self.integers.shape)
        if self.order is None:
            return weights
        return torch.empty_like(weights).index_copy_(1, self.order, weights)


def stacked(parts: Sequence[FourBits]) -> FourBits:
    """Rows below rows. Raises ValueError where the orders of their columns differ, see `one_order`."""
    if not one_order(parts):
        raise ValueError("weights of four bits with columns in different orders cannot be stacked")
    integers, scales, minima = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("integers", "scales", "minima")
    )
    return FourBits(integers, scales, minima, parts[0].order)


def one_order(parts: Sequence[FourBits]) -> bool:
    """Whether the columns of all are in the same order."""
    first = parts[0].order
    if first is None:
        return all(part.order is None for part in parts)
    return all(part.order is not None and torch.equal(part.order, first) for part in parts)


def fits(weight: Grouped) -> bool:
    """Whether `exact` holds it: four bits at most, all groups of one size, which is a multiple of 32."""
    columns, groups = weight.integers.shape[1], weight.scales.shape[1]
    if weight.bits > 4 or columns % (groups * GROUP):
        return False
    if weight.column_groups is None:
        return True
    return bool((weight.column_groups.bincount(minlength=groups) == columns // groups).all())


def exact(weight: Grouped) -> FourBits:
    """The same weights; exactly the same where scales have 16 bits. Raises ValueError where they do not fit."""
    if not fits(weight):
        raise ValueError("int4: only groups of one size, a multiple of 32, of four bits at most are held")
    times = weight.integers.shape[1] // GROUP // weight.scales.shape[1]
    scales = weight.scales.float()
    minima = weight.zeros.float().mul(scales).neg()
    integers, order = weight.integers, None
    if weight.column_groups is not None:
        order = weight.column_groups.argsort(stable=True)
        integers = integers[:, order]
    scales, minima = (table.repeat_interleave(times, 1) for table in (scales, minima))
    return FourBits(integers.contiguous(), scales, minima, order)


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

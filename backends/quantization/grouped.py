"""Weights of small integers whose scales and zeros are shared by groups of a row's columns.

It is what AWQ, GPTQ and compressed-tensors mean; each packs it in a way of its own, see `packing`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class Grouped:
    """A weight is (integer − zero) · scale.

    `integers` uint8 [out, in] of 0 … 2^bits − 1; `scales` of any floating type and `zeros` uint8, both [out, groups].
    `column_groups` int64 [in]: the group of each column; None: each group has as many neighbours as another.
    Raises ValueError for tensors that do not fit one another.
    """

    bits: int
    integers: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    column_groups: torch.Tensor | None = None

    def __post_init__(self) -> None:
        rows, columns = self.integers.shape
        groups = self.scales.shape[-1]
        if self.scales.shape != (rows, groups) or self.zeros.shape != (rows, groups):
            raise ValueError(
                f"{rows} rows do not fit scales {list(self.scales.shape)} and zeros {list(self.zeros.shape)}"
            )
        if self.column_groups is None:
            if not groups or columns % groups:
                raise ValueError(f"{columns} columns are not {groups} groups of one size")
        elif self.column_groups.shape != (columns,):
            raise ValueError(f"groups of {len(self.column_groups)} columns are given, there are {columns}")
        elif columns and not 0 <= int(self.column_groups.min()) <= int(self.column_groups.max()) < groups:
            raise ValueError(f"a column is of a group that is not among the {groups}")

    def dequantized(self) -> torch.Tensor:
        """float32 [out, in]; exact where the scales have 16 bits."""
        scales, zeros = self.scales.float(), self.zeros.float()
        if self.column_groups is not None:
            integers = self.integers.float()
            return integers.sub_(zeros[:, self.column_groups]).mul_(scales[:, self.column_groups])
        groups = self.integers.unflatten(1, (self.scales.shape[1], -1)).float()
        return groups.sub_(zeros.unsqueeze(-1)).mul_(scales.unsqueeze(-1)).flatten(1)

    def rows(self, start: int, stop: int) -> "Grouped":
        """Those output channels alone."""
        part = slice(start, stop)
        return replace(self, integers=self.integers[part], scales=self.scales[part], zeros=self.zeros[part])


def signed_to_codes(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Integers around zero, of −2^(bits−1) and up, as uint8 of 0 and up."""
    return (values.to(torch.int16) + (1 << (bits - 1))).to(torch.uint8)


def middle(rows: int, groups: int, bits: int) -> torch.Tensor:
    """The zeros of symmetric weights: uint8 [rows, groups] of 2^(bits−1)."""
    return torch.full((rows, groups), 1 << (bits - 1), dtype=torch.uint8)


def stacked(parts: Sequence[Grouped]) -> Grouped:
    """Rows below rows. Raises ValueError where bits, groups or their columns differ."""
    first = parts[0]
    for other in parts[1:]:
        if (other.bits, other.scales.shape[1]) != (first.bits, first.scales.shape[1]):
            raise ValueError("parts of different bits or groups cannot be stacked")
        if not _same(first.column_groups, other.column_groups):
            raise ValueError("parts whose columns are grouped differently cannot be stacked")
    integers, scales, zeros = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("integers", "scales", "zeros")
    )
    return Grouped(first.bits, integers, scales, zeros, first.column_groups)


def _same(first: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if first is None or other is None:
        return first is other
    return bool(torch.equal(first, other))

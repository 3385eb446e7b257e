"""Rounding whole weights to small integers in groups: how scales are found, and what the nearest integer is."""

from dataclasses import dataclass

import torch

from backends.quantization.grouped import Grouped

_LEAST = 2.0**-24  # the smallest scale that float16 holds
_SHRINKS = tuple(1 - step / 20 for step in range(10))  # of a group's range, 1 down to 0.55
_AT_ONCE = 1 << 17  # weights: what stays in a core's cache while all shrinks are tried


@dataclass(frozen=True, slots=True)
class Ranges:
    """What the integers of a weight mean: `scales` and `zeros`, float32 [out, groups]; see `grouped.Grouped`."""

    scales: torch.Tensor
    zeros: torch.Tensor


@dataclass(frozen=True, slots=True)
class Grid:
    """`group`: columns that share a scale, 0 for all of a row; `symmetric`: zeros are in the middle.

    `dtype`: what scales are stored in. They are rounded to it before a weight is, so that storing loses nothing.
    """

    bits: int
    group: int
    symmetric: bool
    dtype: torch.dtype = torch.float16

    @property
    def highest(self) -> int:
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        return 1 << (self.bits - 1)

    def width(self, columns: int) -> int:
        """Of a group, in columns."""
        return self.group or columns

    def grouped(self, weight: torch.Tensor) -> torch.Tensor:
        """[out, in] as [out, groups, columns of a group]."""
        return weight.unflatten(1, (-1, self.width(weight.shape[1])))

    def ranges(self, weight: torch.Tensor, shrink: torch.Tensor | float = 1.0) -> Ranges:
        """From the least to the largest weight of each group, zero among them; symmetric: as far on both sides.

        `weight` float32 [out, in]; `shrink`, a number or [out, groups]: the part of the range that is kept.
        """
        least, most = self.grouped(weight).aminmax(dim=2)
        if self.symmetric:
            most = torch.maximum(most, -least)
            least = -most
        least, most = least.clamp(max=0) * shrink, most.clamp(min=0) * shrink
        scales = ((most - least) / self.highest).to(self.dtype).float().clamp(min=_LEAST)
        zeros = (-least / scales).round().clamp(0, self.highest)
        return Ranges(scales, torch.full_like(zeros, self.middle) if self.symmetric else zeros)

    def best_ranges(self, weight: torch.Tensor, moments: torch.Tensor) -> Ranges:
        """The part of each group's range with the least squared error of what the group adds to the output.

        `moments` [groups, width, width]: of the inputs of each group, see `moments_by_group`.
        """
        rows = max(1, _AT_ONCE // weight.shape[1])
        kept = torch.cat([self._best_shrinks(part, moments) for part in weight.split(rows)])
        return self.ranges(weight, kept)

    def _best_shrinks(self, weight: torch.Tensor, moments: torch.Tensor) -> torch.Tensor:
        """[out, groups]."""
        best = torch.full(self.grouped(weight).shape[:2], torch.inf, device=weight.device)
        kept = torch.ones_like(best)
        for shrink in _SHRINKS:
            # [groups, out, width] by [groups, width, width]
            by_group = self.grouped(self.errors(weight, self.ranges(weight, shrink))).transpose(0, 1)
            loss = ((by_group @ moments) * by_group).sum(2).T
            kept = torch.where(loss < best, shrink, kept)
            best = torch.minimum(best, loss)
        return kept

    def errors(self, weight: torch.Tensor, ranges: Ranges) -> torch.Tensor:
        """By how much the nearest steps are larger than the weights of [out, in]."""
        groups, scales, zeros = self.grouped(weight), ranges.scales.unsqueeze(-1), ranges.zeros.unsqueeze(-1)
        rounded = self.integers(groups / scales, zeros).sub_(zeros).mul_(scales)
        return rounded.sub_(groups).flatten(1)

    def nearest(self, weight: torch.Tensor, ranges: Ranges) -> Grouped:
        """Each weight of [out, in] to the nearest of its group's steps."""
        steps = self.grouped(weight) / ranges.scales.unsqueeze(-1)
        return self.packed(self.integers(steps, ranges.zeros.unsqueeze(-1)).flatten(1), ranges)

    def integers(self, steps: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
        """Of weights divided by their scales, float32."""
        return steps.round().add_(zeros).clamp_(0, self.highest)

    def packed(
        self, integers: torch.Tensor, ranges: Ranges, column_groups: torch.Tensor | None = None
    ) -> Grouped:
        scales, zeros = ranges.scales.to(self.dtype), ranges.zeros.to(torch.uint8)
        return Grouped(self.bits, integers.to(torch.uint8), scales, zeros, column_groups)


def evened(inputs: torch.Tensor) -> torch.Tensor:
    """`inputs` [tokens, in] with none longer than the median one, for losses in which each token is to count.

    What a model writes at the first token of a text may be a thousand times as large as elsewhere (arXiv:2402.17762).
    The next norm divides by that, so its error matters no more than another's; squared it would outweigh all others.
    """
    lengths = inputs.norm(dim=1, keepdim=True)
    heard = lengths[lengths > 0]
    return inputs * (heard.median() / lengths).clamp(max=1) if len(heard) else inputs


def moment(inputs: torch.Tensor) -> torch.Tensor:
    """The mean of x · xᵀ over `inputs` [tokens, in]: [in, in]. With it the mean squared error of the outputs of a
    weight that is wrong by D is the trace of D · moment · Dᵀ."""
    return inputs.T @ inputs / len(inputs)


def moments_by_group(moment: torch.Tensor, width: int) -> torch.Tensor:
    """Those of each `width` neighbouring columns alone, the blocks on its diagonal: [groups, width, width]."""
    blocks = moment.unflatten(1, (-1, width)).unflatten(0, (-1, width))
    return blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)

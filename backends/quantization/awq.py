"""AWQ (arXiv:2306.00978): columns with strong inputs are made larger before weights are rounded, and so lose less.

What a column is multiplied by, what comes before divides its input by; nothing else is computed than before.

How the scaled weights are rounded is left open by that. The paper rounds to the nearest, and finds that GPTQ's
compensation goes with its scales; here it always follows. Scales alone lower the error little where groups have zeros
of their own and no few columns are far stronger than the others.
"""

from collections.abc import Callable

import torch

from backends.quantization.gptq import compensated, expected_moment
from backends.quantization.grid import Grid
from backends.quantization.grouped import Grouped

_STEPS = 10  # strengths that are tried, from 0 on
_TOKENS, _ROWS = 256, 512  # of the inputs and of the weight, that they are tried on

Fold = Callable[[torch.Tensor], torch.Tensor]
"""Scales [in] as what comes before can take them: alike where inputs have one source, rounded as they are stored."""


def scaled(
    weight: torch.Tensor, inputs: torch.Tensor, grid: Grid, fold: Fold
) -> tuple[Grouped, torch.Tensor]:
    """`weight` float32 [out, in] with its columns multiplied by scales, in integers; and the scales, float32 [in].

    `inputs` float32 [tokens, in] are those of the weight as it is. Raises ValueError where they are not finite.
    """
    scales = best_scales(weight, inputs, grid, fold)
    return compensated(weight * scales, expected_moment(inputs / scales), grid), scales


def best_scales(weight: torch.Tensor, inputs: torch.Tensor, grid: Grid, fold: Fold) -> torch.Tensor:
    """Of the scales that the strengths of inputs and weights suggest, those with the least squared error of the
    outputs; ones where none of them are better."""
    tried, rows = _spread(inputs, _TOKENS), _spread(weight, _ROWS)
    strength = inputs.abs().mean(0).clamp(min=1e-4)
    size = _relative_size(weight, grid).clamp(min=1e-4)
    ones = torch.ones_like(strength)
    best, least = ones, _loss(rows, tried, grid, ones)
    for balanced in (False, True):
        for step in range(1, _STEPS):
            share = step / _STEPS
            scales = strength**share / (size ** (1 - share) if balanced else 1)
            scales = fold(scales / (scales.max() * scales.min()).sqrt())
            loss = _loss(rows, tried, grid, scales)
            if loss < least:
                best, least = scales, loss
    return best


def _spread(rows: torch.Tensor, most: int) -> torch.Tensor:
    """So many at most, from all over: by a step that sequences of one length do not share, or it would meet the first
    token of each."""
    if len(rows) <= most:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, most, device=rows.device).long()]


def _relative_size(weight: torch.Tensor, grid: Grid) -> torch.Tensor:
    """How large the weights of each column are beside the largest of their groups, on average."""
    groups = grid.grouped(weight).abs()
    return (groups / groups.amax(2, keepdim=True).clamp(min=1e-6)).flatten(1).mean(0)


def _loss(weight: torch.Tensor, inputs: torch.Tensor, grid: Grid, scales: torch.Tensor) -> float:
    larger = weight * scales
    errors = grid.errors(larger, grid.ranges(larger)) / scales
    return float((inputs @ errors.T).square().mean())

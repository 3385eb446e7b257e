"""GPTQ (arXiv:2210.17323): a column is rounded, and the columns that are left make up for the error.

By how much they can is told by the second moment of the inputs: the Hessian of the squared error of the outputs.
"""

from typing import Literal

import torch

from backends.quantization.grid import Grid, Ranges, moment, moments_by_group
from backends.quantization.grouped import Grouped

Order = Literal["none", "static", "dynamic"]
"""In which columns are rounded. none: as they stand; else those with the strongest inputs first, in groups of
neighbours (static), or in groups by this order (dynamic), which readers have to undo."""

DAMPING = 0.01  # so much of the mean of the diagonal is added to it, so that there is an inverse
_BLOCK = 128  # columns whose errors reach the later ones in one product


def expected_moment(inputs: torch.Tensor) -> torch.Tensor:
    """That of `inputs` float32 [tokens, in], with what columns have in common made smaller: [in, in].

    How a few thousand tokens happen to depend on one another is mostly chance where there are as many columns, and what
    columns make up for by it is new error in any other text. Shrinking towards the diagonal is what takes the least
    risk (Ledoit and Wolf, 2004), the more the fewer tokens there are: by half for as many as columns.
    """
    tokens, columns = inputs.shape
    seen = moment(inputs)
    kept = tokens / (tokens + columns)
    return (seen * kept).diagonal_scatter(seen.diagonal())


def compensated(weight: torch.Tensor, moment: torch.Tensor, grid: Grid, order: Order = "static") -> Grouped:
    """`weight` float32 [out, in] in integers, for inputs of `moment` [in, in], see `expected_moment`.

    Raises ValueError for a moment that is not finite.
    """
    moment = moment.clone()
    # An input that was never seen says nothing of its column, which is then rounded by itself.
    moment.diagonal()[moment.diagonal() == 0] = 1
    places = _places(moment, order)
    width = grid.width(weight.shape[1])
    fixed = grid.best_ranges(weight, moments_by_group(moment, width)) if order == "static" else None
    columns = weight.T[places].contiguous()
    factor = _inverse_factor(moment[places][:, places])
    group_of = torch.arange(len(places)) // width
    rounded, ranges = _round(columns, factor, grid, places.cpu() // width if fixed else group_of, fixed)
    integers = torch.empty_like(rounded)
    integers[places] = rounded
    column_groups = None
    if order == "dynamic":
        column_groups = torch.empty_like(places)
        column_groups[places] = group_of.to(places.device)
    return grid.packed(integers.T.contiguous(), ranges, column_groups)


def _places(moment: torch.Tensor, order: Order) -> torch.Tensor:
    if order == "none":
        return torch.arange(len(moment), device=moment.device)
    return moment.diagonal().argsort(descending=True, stable=True)


def _inverse_factor(moment: torch.Tensor) -> torch.Tensor:
    """Upper triangular U with Uᵀ · U = the inverse of the damped moment. Raises ValueError."""
    if not moment.isfinite().all():
        raise ValueError("the inputs of the calibration are not finite here")
    damping = DAMPING * moment.diagonal().mean()
    for _ in range(4):  # rounding may leave a moment of few tokens indefinite
        damped = moment + damping * torch.eye(len(moment), device=moment.device)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not failed:
            return upper
        damping *= 10
    raise ValueError("the inputs of the calibration depend on one another too much; take more of them")


def _round(
    columns: torch.Tensor, factor: torch.Tensor, grid: Grid, group_of: torch.Tensor, fixed: Ranges | None
) -> tuple[torch.Tensor, Ranges]:
    """Integers of `columns` [in, out], which is overwritten; and what they mean.

    `group_of` [in]: of each column. Without `fixed` ranges those of a group are found when its first column is reached,
    from weights that have made up for the errors before; the groups then are neighbours.
    """
    count, out = columns.shape
    width = grid.width(count)
    block = min(width, _BLOCK)
    integers = torch.empty_like(columns)
    scales, zeros = (torch.empty(count // width, out, device=columns.device) for _ in range(2))
    if fixed is not None:
        scales, zeros = fixed.scales.T.contiguous(), fixed.zeros.T.contiguous()
    groups = group_of.tolist()
    for start in range(0, count, block):
        stop = min(start + block, count)
        if fixed is None and start % width == 0:
            found = Grid(grid.bits, 0, grid.symmetric, grid.dtype).ranges(columns[start : start + width].T)
            scales[start // width], zeros[start // width] = found.scales[:, 0], found.zeros[:, 0]
        errors = torch.empty(stop - start, out, device=columns.device)
        for at in range(start, stop):
            scale, zero = scales[groups[at]], zeros[groups[at]]
            integers[at] = grid.integers(columns[at] / scale, zero)
            error = (columns[at] - (integers[at] - zero) * scale) / factor[at, at]
            columns[at + 1 : stop].addr_(factor[at, at + 1 : stop], error, alpha=-1)
            errors[at - start] = error
        columns[stop:].addmm_(factor[start:stop, stop:].T, errors, alpha=-1)
    return integers, Ranges(scales.T, zeros.T)

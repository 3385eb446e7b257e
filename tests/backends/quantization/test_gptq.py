"""GPTQ: columns make up for the errors of those before them."""

import pytest
import torch

from backends.quantization.gptq import Order, compensated, expected_moment
from backends.quantization.grid import Grid, evened, moment


def inputs_of(columns: int, tokens: int = 600) -> torch.Tensor:
    """That depend on one another, some of them loud."""
    mixed = torch.randn(tokens, columns) @ (torch.eye(columns) + torch.randn(columns, columns) * 0.1)
    return mixed * torch.exp(torch.randn(columns))


def error(inputs: torch.Tensor, weight: torch.Tensor, made: torch.Tensor) -> float:
    return float((inputs @ (made - weight).T).square().mean())


def plainly(weight: torch.Tensor, moment: torch.Tensor, grid: Grid, places: torch.Tensor) -> torch.Tensor:
    """What GPTQ says, column by column and without blocks, in float64 with an inverse for each column (the equations
    (2) and (3) of arXiv:2210.17323). Ranges are fixed."""
    ranges = grid.ranges(weight)
    left, hessian = weight.double(), moment.double()
    hessian = hessian + 0.01 * hessian.diagonal().mean() * torch.eye(len(hessian))
    made = torch.empty_like(left)
    order = places.tolist()
    for at, column in enumerate(order):
        rest = order[at:]
        inverse = torch.linalg.inv(hessian[rest][:, rest])
        scale, zero = ranges.scales[:, 0].double(), ranges.zeros[:, 0].double()
        integers = ((left[:, column] / scale).round() + zero).clamp(0, grid.highest)
        made[:, column] = (integers - zero) * scale
        wrong = (left[:, column] - made[:, column]) / inverse[0, 0]
        left[:, rest] -= wrong[:, None] * inverse[0]
    return made.float()


def test_it_is_what_the_equations_say() -> None:
    grid = Grid(4, 0, symmetric=True)
    weight, inputs = torch.randn(6, 140), inputs_of(140)  # more columns than a block has
    made = compensated(weight, moment(inputs), grid, "none").dequantized()
    expected = plainly(weight, moment(inputs), grid, torch.arange(140))
    # A sum that rounds the other way at a tie is made up for by the columns behind it.
    assert (made == expected).float().mean() > 0.97
    assert error(inputs, weight, made) == pytest.approx(error(inputs, weight, expected), rel=0.02)


@pytest.mark.parametrize("order", ["none", "static", "dynamic"])
@pytest.mark.parametrize("group", [0, 32, 64])
@pytest.mark.parametrize("symmetric", [True, False])
def test_it_loses_less_than_rounding(group: int, order: Order, symmetric: bool) -> None:
    grid = Grid(4, group, symmetric)
    weight, inputs = torch.randn(24, 192), inputs_of(192)
    nearest = grid.nearest(weight, grid.ranges(weight)).dequantized()
    made = compensated(weight, moment(inputs), grid, order)
    assert error(inputs, weight, made.dequantized()) < 0.6 * error(inputs, weight, nearest)
    assert (made.column_groups is not None) == (order == "dynamic")
    if made.column_groups is not None and group:
        assert (made.column_groups.bincount() == group).all()


def test_an_input_that_is_never_seen_leaves_its_column_rounded_by_itself() -> None:
    grid = Grid(4, 0, symmetric=True)
    weight, inputs = torch.randn(4, 64), inputs_of(64)
    inputs[:, 10] = 0
    made = compensated(weight, moment(inputs), grid, "none")
    nearest = grid.nearest(weight, grid.ranges(weight))
    assert torch.equal(made.integers[:, 10], nearest.integers[:, 10])


def test_few_tokens_do_and_broken_ones_are_refused() -> None:
    grid = Grid(4, 32, symmetric=True)
    weight, few = torch.randn(4, 64), torch.randn(3, 64)
    made = compensated(weight, moment(few), grid)
    assert made.dequantized().isfinite().all()
    few[0, 0] = torch.nan
    with pytest.raises(ValueError, match="are not finite"):
        compensated(weight, moment(few), grid)


def test_a_token_louder_than_all_others_does_not_decide_for_them() -> None:
    """Its square would be damping enough to keep every column from making up for another."""
    grid = Grid(4, 32, symmetric=False)
    weight, inputs = torch.randn(24, 192), inputs_of(192)
    inputs[0, 5] = 1e5
    nearest = grid.nearest(weight, grid.ranges(weight)).dequantized()

    def lost(seen: torch.Tensor) -> float:
        made = compensated(weight, moment(seen), grid).dequantized()
        return error(inputs[1:], weight, made) / error(inputs[1:], weight, nearest)

    assert lost(evened(inputs)) < 0.6 < lost(inputs)


def test_few_tokens_lose_less_of_another_text_than_rounding_does() -> None:
    """As many tokens as columns, which depend on one another in a few ways and else by chance."""
    grid = Grid(4, 32, symmetric=False)
    weight, common = torch.randn(24, 192), torch.randn(8, 192)
    seen, others = (torch.randn(n, 8) @ common + torch.randn(n, 192) for n in (192, 2000))
    nearest = grid.nearest(weight, grid.ranges(weight)).dequantized()

    def lost(moment: torch.Tensor) -> float:
        made = compensated(weight, moment, grid).dequantized()
        return error(others, weight, made) / error(others, weight, nearest)

    assert lost(expected_moment(seen)) < 0.8 * lost(moment(seen))
    assert lost(expected_moment(seen)) < 0.6


def test_many_tokens_are_believed() -> None:
    inputs = inputs_of(32, tokens=3168)
    seen, expected = moment(inputs), expected_moment(inputs)
    torch.testing.assert_close(expected.diagonal(), seen.diagonal())
    apart = ~torch.eye(32, dtype=torch.bool)
    torch.testing.assert_close(expected[apart], 0.99 * seen[apart])

"""Rounding to the nearest integer, and ranges that are shrunk where that serves."""

import pytest
import torch

from backends.quantization.grid import Grid, evened, moment, moments_by_group


def error(inputs: torch.Tensor, weight: torch.Tensor, made: torch.Tensor) -> float:
    return float((inputs @ (made - weight).T).square().mean())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [0, 32])
@pytest.mark.parametrize("bits", [4, 8])
def test_no_weight_is_further_than_half_a_step_away(bits: int, group: int, symmetric: bool) -> None:
    grid = Grid(bits, group, symmetric)
    weight = torch.randn(6, 96)
    ranges = grid.ranges(weight)
    made = grid.nearest(weight, ranges)
    assert torch.equal(grid.errors(weight, ranges), made.dequantized() - weight)
    steps = ranges.scales.repeat_interleave(grid.width(96), 1)
    # Half a step more at the ends: symmetric ranges have a step less above zero, zeros are whole numbers.
    assert ((made.dequantized() - weight).abs() <= steps * 1.01).all()
    inside = (made.integers > 0) & (made.integers < grid.highest)
    assert ((made.dequantized() - weight).abs() <= steps * 0.501)[inside].all()
    assert made.scales.dtype == torch.float16 and torch.equal(made.scales.float(), ranges.scales)


def test_zero_stays_zero_and_nothing_is_divided_by_it() -> None:
    """A row of zeros, one with a single sign, and one whose range is below what float16 holds."""
    weight = torch.stack([torch.zeros(32), torch.rand(32) + 1, torch.full((32,), 1e-9)])
    for symmetric in (True, False):
        grid = Grid(4, 0, symmetric)
        made = grid.nearest(weight, grid.ranges(weight)).dequantized()
        assert made.isfinite().all() and (made[0] == 0).all() and (made[2].abs() < 1e-6).all()
        assert (made[1] - weight[1]).abs().max() < 0.2


def test_a_range_is_shrunk_only_where_that_loses_less() -> None:
    grid = Grid(4, 32, symmetric=True)
    inputs = torch.randn(200, 64)
    weight = torch.randn(5, 64) * 0.1
    weight[:, 40] = 1.0  # far from the others, on an input that is all but silent
    inputs[:, 40] = 0.01
    plain = grid.nearest(weight, grid.ranges(weight)).dequantized()
    best = grid.best_ranges(weight, moments_by_group(moment(inputs), 32))
    shrunk = grid.nearest(weight, best).dequantized()
    assert error(inputs, weight, shrunk) < 0.5 * error(inputs, weight, plain)
    assert (best.scales[:, 1] < 0.6 * grid.ranges(weight).scales[:, 1]).all()


def test_ranges_of_a_row_do_not_depend_on_how_many_there_are() -> None:
    grid = Grid(4, 64, symmetric=False)
    weight, moments = torch.randn(1500, 128), moments_by_group(moment(torch.randn(90, 128)), 64)
    together = grid.best_ranges(weight, moments)
    for row in (0, 1023, 1024, 1499):  # more rows than are tried at a time
        alone = grid.best_ranges(weight[row : row + 1], moments)
        assert torch.equal(alone.scales[0], together.scales[row])
        assert torch.equal(alone.zeros[0], together.zeros[row])


def test_moments_tell_the_error_of_the_outputs() -> None:
    inputs, wrong = torch.randn(50, 64), torch.randn(3, 64)
    whole = moment(inputs)
    assert (wrong @ whole @ wrong.T).trace() == pytest.approx(
        float((inputs @ wrong.T).square().sum() / 50), rel=1e-4
    )
    torch.testing.assert_close(moments_by_group(whole, 32)[1], whole[32:, 32:])


def test_no_token_counts_for_more_than_the_median_one() -> None:
    inputs = torch.randn(101, 32)
    inputs[7] *= 1000
    inputs[50:] = 0  # silent tokens say nothing of how loud the others are
    lengths, even = inputs.norm(dim=1), evened(inputs).norm(dim=1)
    median = lengths[:50].median()
    torch.testing.assert_close(even, lengths.clamp(max=median))
    torch.testing.assert_close(evened(inputs)[7] * lengths[7] / median, inputs[7])


def test_silence_stays_and_broken_inputs_are_not_hidden() -> None:
    assert torch.equal(evened(torch.zeros(4, 8)), torch.zeros(4, 8))
    assert evened(torch.tensor([[1.0, torch.nan], [1.0, 2.0]])).isnan().any()

"""AWQ: columns with strong inputs lose less."""

import torch

from backends.quantization.awq import best_scales, scaled
from backends.quantization.grid import Grid, evened

GRID = Grid(4, 32, symmetric=False)


def error(inputs: torch.Tensor, weight: torch.Tensor, made: torch.Tensor) -> float:
    return float((inputs @ (made - weight).T).square().mean())


def loud() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of which a few are a hundred times as strong."""
    inputs = torch.randn(400, 96)
    inputs[:, ::17] *= 100
    return inputs, torch.randn(12, 96)


def test_it_loses_clearly_less_and_computes_the_same() -> None:
    inputs, weight = loud()
    made, scales = scaled(weight, inputs, GRID, lambda scales: scales)
    nearest = GRID.nearest(weight, GRID.ranges(weight)).dequantized()
    assert error(inputs, weight, made.dequantized() / scales) < 0.2 * error(inputs, weight, nearest)
    assert scales[::17].min() > 2 * scales[1:17].max()
    eight, scales = scaled(weight, inputs, Grid(8, 32, symmetric=False), lambda scales: scales)
    torch.testing.assert_close(
        (inputs / scales) @ eight.dequantized().T, inputs @ weight.T, rtol=0.02, atol=2.0
    )


def test_some_of_many_rows_tell_enough() -> None:
    inputs, _ = loud()
    weight = torch.randn(1300, 96)
    made, scales = scaled(weight, inputs, GRID, lambda scales: scales)
    nearest = GRID.nearest(weight, GRID.ranges(weight)).dequantized()
    assert error(inputs, weight, made.dequantized() / scales) < 0.2 * error(inputs, weight, nearest)


def test_columns_make_up_for_one_another_where_none_is_loud() -> None:
    """There scales are of no help."""
    common = torch.randn(8, 192)
    seen, others = (torch.randn(n, 8) @ common + torch.randn(n, 192) for n in (600, 2000))
    weight = torch.randn(24, 192)
    made, scales = scaled(weight, seen, GRID, lambda scales: scales)
    larger = weight * scales
    nearest = GRID.nearest(larger, GRID.ranges(larger)).dequantized()
    assert error(others, weight, made.dequantized() / scales) < 0.4 * error(others, weight, nearest / scales)


def test_what_comes_before_has_the_last_word_on_scales() -> None:
    inputs, weight = loud()

    def pairs(scales: torch.Tensor) -> torch.Tensor:
        return scales.view(2, -1).mean(0, keepdim=True).expand(2, -1).flatten()

    _, scales = scaled(weight, inputs, GRID, pairs)
    assert torch.equal(scales[:48], scales[48:]) and scales.max() > scales.min()


def test_nothing_is_scaled_where_that_would_not_help() -> None:
    """Weights that are the grid's own numbers already."""
    weight = torch.randint(0, 16, (8, 64)).float()
    weight[:, ::32], weight[:, 1::32] = 0, 15  # the ends of each group's range: steps of one
    assert torch.equal(GRID.nearest(weight, GRID.ranges(weight)).dequantized(), weight)
    scales = best_scales(weight, torch.randn(100, 64), GRID, lambda scales: scales)
    assert torch.equal(scales, torch.ones(64))


def test_the_first_tokens_of_sequences_do_not_decide_for_all_others() -> None:
    """In each 32nd token a column is a thousand times as loud as any is elsewhere, as behind a real model's gates."""
    inputs, weight = loud()
    inputs = inputs.repeat(8, 1)
    others = torch.arange(len(inputs)) % 32 != 0
    inputs[~others, 5] = 1e5
    nearest = GRID.nearest(weight, GRID.ranges(weight)).dequantized()

    def lost(seen: torch.Tensor) -> float:
        made, scales = scaled(weight, seen, GRID, lambda scales: scales)
        whole = made.dequantized() / scales
        return error(inputs[others], weight, whole) / error(inputs[others], weight, nearest)

    assert lost(evened(inputs)) < 0.3 < lost(inputs)

"""How products are cut: the order of a row's sums hangs on the weights alone."""

import pytest

from backends.kernels.tiling import PROGRAMS, TILE_ROWS, tiling

SHAPES = [
    (4096, 4096, 128),
    (576, 576, 576),
    (28672, 8192, 32),
    (151936, 896, 896),
    (49152, 576, 64),
    (8, 33, 33),
]


@pytest.mark.parametrize(("channels", "columns", "group"), SHAPES)
def test_rows_change_only_what_no_sum_notices(channels: int, columns: int, group: int) -> None:
    cuts = [tiling(rows, channels, columns, group, 2) for rows in (1, 2, 16, 17, 63, 64, 512, 8192)]
    assert len({(cut.depth, cut.splits, cut.span) for cut in cuts}) == 1


@pytest.mark.parametrize(("channels", "columns", "group"), SHAPES)
def test_pieces_cover_all_columns_and_steps_lie_in_one_group(channels: int, columns: int, group: int) -> None:
    cut = tiling(4, channels, columns, group, 2)
    assert cut.span % cut.depth == 0
    assert (cut.splits - 1) * cut.span < columns <= cut.splits * cut.span
    assert group == columns or group % cut.depth == 0


@pytest.mark.parametrize("bytes_each", [1, 2, 4])
@pytest.mark.parametrize("budget", [512, 2048])
@pytest.mark.parametrize(("channels", "columns", "group"), SHAPES)
def test_what_batches_of_each_tile_and_the_largest_compile_serves_all(
    channels: int, columns: int, group: int, budget: int, bytes_each: int
) -> None:
    """It is compiled before an engine answers; later it would hold up everybody, for seconds."""
    known = {tiling(rows, channels, columns, group, bytes_each) for rows in (*TILE_ROWS, budget)}
    assert {tiling(rows, channels, columns, group, bytes_each) for rows in range(1, budget + 1)} <= known


def test_few_rows_are_spread_over_programs_by_columns_and_many_are_not() -> None:
    alone, many = tiling(1, 4096, 4096, 128, 2), tiling(4096, 4096, 4096, 128, 2)
    assert alone.parallel and not many.parallel
    assert alone.splits * -(-4096 // alone.channels) == PROGRAMS
    assert (alone.rows, many.rows) == (16, 64)


def test_weights_with_many_channels_are_not_split() -> None:
    assert tiling(1, 151936, 896, 896, 2).splits == 1

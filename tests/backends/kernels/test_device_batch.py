"""Every token of a batch is in one tile, and the numbers are those of the layout."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.kernels.device_batch import DeviceBatch, Tiles
from backends.kernels.layout import KVCache, Layout, Span

BLOCK = 4


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    lengths = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30)), min_size=1, max_size=6))
    blocks = iter(range(100))
    spans = [
        Span(start, count, [next(blocks) for _ in range(-(-(start + count) // BLOCK))], shift=7)
        for start, count in lengths
    ]
    return Layout(spans, KVCache(1, 100, BLOCK, 1, 2, dtype=torch.float32))


@given(layouts(), st.integers(1, 8), st.integers(1, 8), st.integers(1, 20))
def test_every_token_is_in_one_tile_of_its_span(layout: Layout, short: int, long: int, border: int) -> None:
    batch = DeviceBatch.of(layout, short, long, border)
    seen: list[int] = []
    for tiles, most in ((batch.short, short), (batch.long, long)):
        if tiles is not None:
            seen += held(tiles, layout, most, is_long=tiles is batch.long, border=border)
    assert sorted(seen) == list(range(len(layout.rows)))


def held(tiles: Tiles, layout: Layout, most: int, *, is_long: bool, border: int) -> list[int]:
    """The tokens of the tiles, each of which is checked."""
    tokens: list[int] = []
    for span, first, count, slot in tiles.table.tolist():
        assert 1 <= count <= most
        assert slot == len(tokens)
        assert (layout.counts[span] >= border) == is_long
        assert (layout.rows[first : first + count] == span).all()
        tokens += range(first, first + count)
    assert tokens == tiles.order.tolist()
    return tokens


@given(layouts())
def test_the_numbers_are_the_layouts(layout: Layout) -> None:
    batch = DeviceBatch.of(layout, 4, 4, 16)
    for name in ("positions", "angles", "rows", "tables"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(layout, name))


@given(layouts())
def test_all_begin_where_triton_expects_them(layout: Layout) -> None:
    """At multiples of 16 bytes from the first, whatever their lengths: other addresses are compiled for anew."""
    batch = DeviceBatch.of(layout, 4, 4, 16)
    tensors = [batch.positions, batch.angles, batch.rows, batch.tables]
    for tiles in (batch.short, batch.long):
        tensors += [] if tiles is None else [tiles.table, tiles.order]
    assert all(tensor.storage_offset() % 4 == 0 for tensor in tensors)

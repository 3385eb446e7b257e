import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.kernels.layout import KVCache, Layout, Span


def cache(block_size: int = 16, blocks: int = 200) -> KVCache:
    return KVCache(1, blocks, block_size, 1, 2, dtype=torch.float32)


@st.composite
def span_lists(draw: st.DrawFn) -> tuple[list[Span], int]:
    block_size = draw(st.integers(1, 20))
    free = iter(draw(st.permutations(range(200))))
    spans = []
    for _ in range(draw(st.integers(1, 6))):
        start, count = draw(st.integers(0, 40)), draw(st.integers(1, 40))
        needed = -(-(start + count) // block_size)
        spare = draw(st.integers(0, 2))
        blocks = [block for _, block in zip(range(needed + spare), free, strict=False)]
        if len(blocks) >= needed:
            spans.append(Span(start, count, blocks))
    return spans or [Span(0, 1, [0])], block_size


@given(span_lists())
def test_every_token_gets_its_place(case: tuple[list[Span], int]) -> None:
    spans, block_size = case
    layout = Layout(spans, cache(block_size))
    expected = [
        (row, position, span.blocks[position // block_size], position % block_size)
        for row, span in enumerate(spans)
        for position in range(span.start, span.stop)
    ]
    blocks, offsets = layout.places
    assert expected == list(
        zip(layout.rows.tolist(), layout.positions.tolist(), blocks.tolist(), offsets.tolist(), strict=True)
    )


@pytest.mark.parametrize("span", [Span(0, 0, [1]), Span(-1, 1, [1]), Span(0, 17, [1]), Span(16, 1, [1])])
def test_a_span_outside_its_blocks_is_refused(span: Span) -> None:
    with pytest.raises(ValueError, match=f"start={span.start}, count={span.count}"):
        Layout([Span(0, 1, [0]), span], cache())


@pytest.mark.parametrize("blocks", [[0, 200], [-1, 0]])
def test_blocks_that_the_cache_lacks_are_refused(blocks: list[int]) -> None:
    with pytest.raises(ValueError, match="only the blocks 0 to 199"):
        Layout([Span(0, 1, blocks)], cache())


def test_gather_takes_blocks_in_their_order_up_to_the_end() -> None:
    small = KVCache(2, 4, 2, 1, 1, dtype=torch.float32)
    small.keys[1] = torch.arange(8).view(4, 2, 1, 1)
    small.values[1] = -small.keys[1]
    keys, values = small.gather(1, torch.tensor([3, 0], dtype=torch.int32), 3)
    assert keys.flatten().tolist() == [6, 7, 0]
    assert values.flatten().tolist() == [-6, -7, 0]


def test_tables_of_unequal_length_are_padded_with_a_block_that_exists() -> None:
    layout = Layout([Span(0, 1, [5]), Span(17, 1, [7, 6])], cache())
    np.testing.assert_array_equal(layout.tables, [[5, 0], [7, 6]])

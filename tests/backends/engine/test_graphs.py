"""Which steps are recorded, and where; what they do is in `interpreted/test_graphs.py`."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.graphs import capture_on, sizes


@pytest.mark.parametrize(
    ("most", "expected"),
    [(1, [1]), (2, [2, 1]), (3, [4, 2, 1]), (8, [8, 4, 2, 1]), (20, [24, 16, 8, 4, 2, 1])],
)
def test_sizes(most: int, expected: list[int]) -> None:
    assert sizes(most) == expected


@given(st.integers(1, 500))
def test_every_number_of_rows_has_a_size_that_is_not_much_larger(most: int) -> None:
    found = sizes(most)
    for rows in range(1, most + 1):
        size = min(size for size in found if size >= rows)
        assert size < max(rows + 8, 2 * rows)


def test_nothing_is_recorded_on_a_cpu() -> None:
    assert capture_on(torch.device("cpu")) is None

"""The trace is the same for both trees, which find the same prefixes in it."""

from array import array
from itertools import islice

import pytest

from benchmarks import radix


def test_a_trace_is_one_of_growing_conversations() -> None:
    first, again = (list(islice(radix.trace(0), 60)) for _ in range(2))
    assert first == again
    assert all(isinstance(ids, array) and 100 < len(ids) <= radix.LONGEST for ids in first)
    longer = [
        ids for number, ids in enumerate(first) if any(ids[: len(old)] == old for old in first[:number])
    ]
    assert len(longer) > 10, "later turns begin with the ones before"


def test_both_trees_find_the_same() -> None:
    try:
        rows = radix.rows(2 * radix.PORTION)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    assert [row.case for row in rows] == ["tree match", "tree insert", "tree evict"]

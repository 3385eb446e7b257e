"""What ranks are told of a step: enough to run it, and no more than is new."""

import io
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from backends.engine.parallel.orders import Load, Order, RowOrder, Step, Table, Tables, read, write
from backends.kernels.layout import Span
from backends.wire import EngineConfig


def spans(tables: Sequence[Sequence[int]]) -> list[Span]:
    return [Span(16 * len(table) - 1, 1, table) for table in tables]


def step(told: list[Table]) -> Step:
    return Step(
        [RowOrder(100_000, 1, 0, table) for table in told], [7] * len(told), list(range(len(told))), 1
    )


@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=4), max_size=6
    )
)
def test_both_sides_remember_the_same_tables(steps: list[list[list[int]]]) -> None:
    """Whatever becomes of them: longer, shorter, other ones, in another order, the same one twice."""
    ours, theirs = Tables(), Tables()
    for tables in steps:
        assert theirs.heard(ours.told(spans(tables))) == tables


def test_a_table_is_told_once() -> None:
    """Also where rows come and go, and where two begin with the same cached blocks."""
    tables, shared = Tables(), list(range(1000))
    tables.told(spans([[*shared, 2001], [*shared, 2002, 2003], [3001]]))
    told = tables.told(spans([[4000], [*shared, 2002, 2003, 2004], [*shared, 2001]]))
    assert told == [Table(None, [4000]), Table(1, [2004]), Table(0, [])]


def test_a_table_that_is_changed_later_is_no_longer_the_one_that_was_told() -> None:
    tables, blocks = Tables(), [1, 2]
    tables.told(spans([blocks]))
    blocks[0] = 9
    assert tables.told(spans([blocks])) == [Table(None, [9, 2])]


def test_a_step_of_decoding_is_a_few_bytes_for_each_row() -> None:
    """Of 64 rows with a context of 100,000 tokens each."""
    tables = Tables()
    rows = [list(range(6250 * row, 6250 * (row + 1))) for row in range(64)]
    first = write(step(tables.told(spans(rows))))
    later = write(step(tables.told(spans(rows))))
    grown = write(step(tables.told(spans([[*row, 500_000] for row in rows]))))
    assert len(first) > 1_000_000
    assert len(later) < 64 * 16 and len(grown) < 64 * 24


def test_orders_follow_one_another_until_nobody_gives_any() -> None:
    config = EngineConfig(name="e", model="m", socket="", vocabulary="", tensor_parallel=2)
    orders: list[Order] = [Load(config, None), step([Table(None, [1, 2])]), Load(config, 300), step([])]
    assert list(read(io.BytesIO(b"".join(map(write, orders))))) == orders

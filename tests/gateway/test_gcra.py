"""The integer bucket against the other form of the algorithm, and where rounding could bite."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gateway import gcra


@given(st.integers(1, 10**9), st.lists(st.tuples(st.integers(0, 120_000), st.integers(0, 1000)), max_size=20))
def test_it_admits_what_virtual_scheduling_admits(limit: int, arrivals: list[tuple[int, int]]) -> None:
    debt, now = 0, 0
    theoretical = Fraction(0)  # arrival time, milliseconds
    interval = Fraction(gcra.MINUTE, limit)
    for pause, units in arrivals:
        now += pause
        debt = gcra.leaked(debt, limit, pause)
        theoretical = max(theoretical, Fraction(now))
        conforms = theoretical + units * interval - now <= gcra.MINUTE
        assert (gcra.wait(debt, limit, units) == 0) == conforms
        if conforms:
            debt = gcra.moved(debt, units)
            theoretical += units * interval
        assert Fraction(debt, limit) == theoretical - now


@given(st.integers(1, 10**9), st.integers(0, 10**15), st.integers(0, 10**9))
def test_waiting_is_enough_and_one_millisecond_less_is_not(limit: int, debt: int, units: int) -> None:
    wait = gcra.wait(debt, limit, units)
    if wait is None:
        assert units > limit
        return
    assert gcra.wait(gcra.leaked(debt, limit, wait), limit, units) == 0
    assert wait == 0 or gcra.wait(gcra.leaked(debt, limit, wait - 1), limit, units) == 1


@given(st.integers(1, 10**9), st.integers(0, 10**15))
def test_what_remains_fits_and_one_more_does_not(limit: int, debt: int) -> None:
    remaining = gcra.remaining(debt, limit)
    assert 0 <= remaining <= limit
    assert remaining == 0 or gcra.wait(debt, limit, remaining) == 0
    assert gcra.wait(debt, limit, remaining + 1) != 0


@given(st.integers(1, 10**9), st.integers(0, 10**15))
def test_after_reset_all_is_there_and_not_before(limit: int, debt: int) -> None:
    reset = gcra.reset(debt, limit)
    assert gcra.leaked(debt, limit, reset) == 0
    assert reset == 0 or gcra.leaked(debt, limit, reset - 1) > 0


@given(st.integers(1, 10**9), st.integers(0, 10**15), st.lists(st.integers(0, 100_000), max_size=5))
def test_time_may_pass_in_any_pieces(limit: int, debt: int, pieces: list[int]) -> None:
    stepwise = debt
    for piece in pieces:
        stepwise = gcra.leaked(stepwise, limit, piece)
    assert stepwise == gcra.leaked(debt, limit, sum(pieces))


def test_a_clock_set_back_changes_no_debt() -> None:
    assert gcra.leaked(500, 10, -3_600_000) == 500


def test_giving_back_more_than_is_owed_leaves_no_credit() -> None:
    assert gcra.moved(gcra.MINUTE, -5) == 0

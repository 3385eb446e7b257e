"""The integer bucket against the other form of the algorithm, and where rounding could bite."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gateway import gcra
from gateway.gcra import Bucket

buckets = st.builds(Bucket, rate=st.integers(1, 10**9), burst=st.integers(1, 10**9))
debts = st.integers(0, 10**15)


@given(buckets, st.lists(st.tuples(st.integers(0, 120_000), st.integers(0, 1000)), max_size=20))
def test_it_admits_what_virtual_scheduling_admits(bucket: Bucket, arrivals: list[tuple[int, int]]) -> None:
    debt, now = 0, 0
    theoretical = Fraction(0)  # arrival time, milliseconds
    interval = Fraction(gcra.MINUTE, bucket.rate)
    for pause, units in arrivals:
        now += pause
        debt = bucket.leaked(debt, pause)
        theoretical = max(theoretical, Fraction(now))
        conforms = theoretical + units * interval - now <= bucket.burst * interval
        assert (bucket.wait(debt, units) == 0) == conforms
        if conforms:
            debt = gcra.moved(debt, units)
            theoretical += units * interval
        assert Fraction(debt, bucket.rate) == theoretical - now


@given(buckets, debts, st.integers(0, 10**9))
def test_waiting_is_enough_and_one_millisecond_less_is_not(bucket: Bucket, debt: int, units: int) -> None:
    wait = bucket.wait(debt, units)
    if wait is None:
        assert units > bucket.burst
        return
    assert bucket.wait(bucket.leaked(debt, wait), units) == 0
    assert wait == 0 or bucket.wait(bucket.leaked(debt, wait - 1), units) == 1


@given(buckets, debts)
def test_what_remains_fits_and_one_more_does_not(bucket: Bucket, debt: int) -> None:
    remaining = bucket.remaining(debt)
    assert 0 <= remaining <= bucket.burst
    assert remaining == 0 or bucket.wait(debt, remaining) == 0
    assert bucket.wait(debt, remaining + 1) != 0


@given(buckets, debts)
def test_after_reset_all_is_there_and_not_before(bucket: Bucket, debt: int) -> None:
    reset = bucket.reset(debt)
    assert bucket.leaked(debt, reset) == 0
    assert reset == 0 or bucket.leaked(debt, reset - 1) > 0


@given(buckets, debts, st.lists(st.integers(0, 100_000), max_size=5))
def test_time_may_pass_in_any_pieces(bucket: Bucket, debt: int, pieces: list[int]) -> None:
    stepwise = debt
    for piece in pieces:
        stepwise = bucket.leaked(stepwise, piece)
    assert stepwise == bucket.leaked(debt, sum(pieces))


def test_a_clock_set_back_changes_no_debt() -> None:
    assert Bucket(10, 10).leaked(500, -3_600_000) == 500


def test_giving_back_more_than_is_owed_leaves_no_credit() -> None:
    assert gcra.moved(gcra.MINUTE, -5) == 0

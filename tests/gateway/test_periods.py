"""Days and months against the calendar of the standard library."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gateway.periods import counted_in, ends, periods

moments = st.datetimes(datetime(1970, 1, 1), datetime(2199, 12, 31), timezones=st.just(UTC))


def milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


@given(moments)
def test_a_moment_is_within_its_periods_and_their_ends_are_without(moment: datetime) -> None:
    now = milliseconds(moment)
    day, month = periods(now)
    assert divmod(month, 12) == divmod(12 * moment.year + moment.month - 1, 12)
    day_end, month_end = ends((day, month))
    assert now < day_end <= month_end
    assert periods(day_end - 1)[0] == day and periods(day_end)[0] == day + 1
    assert periods(month_end - 1)[1] == month and periods(month_end)[1] == month + 1


def test_a_leap_day_is_a_day() -> None:
    (_, end) = ends(periods(milliseconds(datetime(2028, 2, 29, 12, tzinfo=UTC))))
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=end) == datetime(2028, 3, 1, tzinfo=UTC)


def test_a_clock_that_goes_back_a_little_stays_in_its_period_a_wrong_one_does_not() -> None:
    assert counted_in(stored=10, now=9) == 10
    assert counted_in(stored=10, now=10) == 10
    assert counted_in(stored=10, now=11) == 11
    assert counted_in(stored=5000, now=10) == 10

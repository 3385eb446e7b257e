"""Days and months of UTC as whole numbers, and when they end. Redis counts them alike (`limits.lua`)."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

DAY = 24 * 3600 * 1000  # milliseconds; POSIX time has no leap seconds
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Periods = tuple[int, int]  # days since 1970-01-01, and twelve times the year plus the month (0 to 11)


def periods(wall: int) -> Periods:
    """`wall`: POSIX milliseconds."""
    return _periods_of(wall // DAY)


@lru_cache(8)
def _periods_of(day: int) -> Periods:
    date = EPOCH + timedelta(days=day)
    return day, 12 * date.year + date.month - 1


def ends(of: Periods) -> tuple[int, int]:
    """POSIX milliseconds at which the day and the month are over."""
    day, month = of
    year, months = divmod(month + 1, 12)
    first = datetime(year, months + 1, 1, tzinfo=UTC)
    return (day + 1) * DAY, (first - EPOCH) // timedelta(milliseconds=1)


def counted_in(stored: int, now: int) -> int:
    """The period that a counter of `stored` goes on in. A clock set back a little must not begin a budget anew."""
    return stored if stored == now + 1 else now

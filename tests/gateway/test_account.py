"""The decision over all limits, and the words of a refusal."""

import pytest

from gateway.account import LEASE, Account, alive, granted, obstacles, refused, unlimited
from gateway.config import Limits
from gateway.limits import Remaining

ALL = Limits(requests_per_minute=2, tokens_per_minute=100, parallel=1)


def test_only_limits_that_stand_in_the_way_are_obstacles() -> None:
    account = Account().taken(ALL, 60)
    assert obstacles(account, ALL, 40, running=0) == {}
    assert obstacles(account, ALL, 41, running=0) == {"tokens": 600}
    assert obstacles(account, ALL, 101, running=1) == {"tokens": None, "parallel": 1000}
    assert obstacles(account.taken(ALL, 40), ALL, 0, running=0) == {"requests": 30_000}
    assert obstacles(account.taken(ALL, 40), Limits(), 10**9, running=10**9) == {}


def test_a_refusal_names_the_limit_that_stands_longest() -> None:
    account = Account().taken(ALL, 60).taken(ALL, 40)
    refusal = refused(account, ALL, {"requests": 30_000, "tokens": 60_000, "parallel": 1000})
    assert (refusal.limit, refusal.retry_after) == ("tokens", 60.0)
    assert refusal.requests_left == Remaining(limit=2, remaining=0, reset=60.0)
    refusal = refused(account, ALL, {"requests": 30_000, "tokens": None})
    assert (refusal.limit, refusal.retry_after) == ("tokens", None)


def test_what_is_not_limited_is_neither_counted_nor_reported() -> None:
    only = Limits(parallel=1)
    account = Account().taken(only, 10**9)
    assert account == Account()
    reservation = granted(account, only, "acme", "a", 10**9)
    assert (reservation.requests_left, reservation.tokens_left) == (None, None)
    assert unlimited(Limits()) and not unlimited(only)


@pytest.mark.parametrize(
    ("expires", "counts"),
    [(0, False), (1, True), (LEASE, True), (LEASE + 60_000, True), (LEASE + 60_001, False)],
)
def test_a_lease_counts_until_it_expires_unless_it_is_of_another_clock(expires: int, counts: bool) -> None:
    assert alive(1_000_000 + expires, now=1_000_000) is counts


def test_a_negative_debt_is_found() -> None:
    Account().check()
    with pytest.raises(AssertionError):
        Account(tokens=-1).check()

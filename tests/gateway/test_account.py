"""The decision over all limits, and the words of a refusal."""

import pytest

from gateway.account import LEASE, Account, alive, granted, obstacles, refused, unlimited
from gateway.config import Budget, Limits
from gateway.limits import Amount, Remaining
from gateway.periods import periods

ALL = Limits(requests_per_minute=2, tokens_per_minute=100, parallel=1)

NOON = 1_766_664_000_000  # 2025-12-25 12:00 UTC


def tokens(count: int) -> Amount:
    return Amount(tokens=count)


def spent(limits: Limits, *money: int) -> Account:
    account = Account().opened(limits, 0, NOON)
    for amount in money:
        account = account.taken(limits, Amount(money=amount))
    return account


def test_only_limits_that_stand_in_the_way_are_obstacles() -> None:
    account = Account().taken(ALL, tokens(60))
    assert obstacles(account, ALL, tokens(40), running=0) == {}
    assert obstacles(account, ALL, tokens(41), running=0) == {"tokens": 600}
    assert obstacles(account, ALL, tokens(101), running=1) == {"tokens": None, "parallel": 1000}
    assert obstacles(account.taken(ALL, tokens(40)), ALL, tokens(0), running=0) == {"requests": 30_000}
    assert obstacles(account.taken(ALL, tokens(40)), Limits(), tokens(10**9), running=10**9) == {}


def test_a_refusal_names_the_limit_that_stands_longest() -> None:
    account = Account().taken(ALL, tokens(60)).taken(ALL, tokens(40))
    refusal = refused(account, ALL, {"requests": 30_000, "tokens": 60_000, "parallel": 1000})
    assert (refusal.limit, refusal.retry_after) == ("tokens", 60.0)
    assert refusal.left["requests"] == Remaining(limit=2, remaining=0, reset=60.0)
    refusal = refused(account, ALL, {"requests": 30_000, "tokens": None})
    assert (refusal.limit, refusal.retry_after) == ("tokens", None)


def test_a_budget_stands_until_its_period_ends_or_for_ever() -> None:
    limits = Limits(budget=Budget(per_day=10e-9, per_month=20e-9))
    account = spent(limits, 6)
    assert obstacles(account, limits, Amount(money=4), running=0) == {}
    half_a_day = 12 * 3600 * 1000
    assert obstacles(account, limits, Amount(money=5), running=0) == {"budget_day": half_a_day}
    standing = obstacles(account, limits, Amount(money=15), running=0)
    assert standing == {"budget_day": None, "budget_month": half_a_day + 6 * 24 * 3600 * 1000}
    assert refused(account, limits, standing).limit == "budget_day"


def test_money_is_counted_where_no_budget_stands() -> None:
    assert spent(Limits(parallel=1), 6, 7).spent == (13, 13)
    assert spent(Limits(parallel=1), 6).periods == periods(NOON)


def test_what_is_not_limited_is_neither_counted_nor_reported() -> None:
    only = Limits(parallel=1)
    account = Account().taken(only, tokens(10**9))
    assert account == Account()
    reservation = granted(account, only, "acme", "a", tokens(10**9))
    assert reservation.left == {}
    assert unlimited(Limits()) and not unlimited(only)
    assert unlimited(Limits(budget=Budget(on_outage="open")))
    assert not unlimited(Limits(budget=Budget(per_day=1)))


@pytest.mark.parametrize(
    ("expires", "counts"),
    [(0, False), (1, True), (LEASE, True), (LEASE + 60_000, True), (LEASE + 60_001, False)],
)
def test_a_lease_counts_until_it_expires_unless_it_is_of_another_clock(expires: int, counts: bool) -> None:
    assert alive(1_000_000 + expires, now=1_000_000) is counts


def test_a_negative_debt_is_found() -> None:
    Account().check()
    with pytest.raises(AssertionError):
        Account(debts=(0, -1, 0, 0)).check()

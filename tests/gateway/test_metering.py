"""The part of one gateway among several."""

from gateway.config import Budget, Limits
from gateway.metering import share_of


def test_a_share_is_rounded_up_and_nobody_is_left_with_nothing() -> None:
    limits = Limits(requests_per_minute=10, tokens_per_minute=999, tokens_burst=2, parallel=1)
    share = share_of(limits, 3)
    assert share == Limits(requests_per_minute=4, tokens_per_minute=333, tokens_burst=1, parallel=1)


def test_what_is_unlimited_stays_so_and_budgets_are_not_shared_out() -> None:
    assert share_of(Limits(budget=Budget(per_day=5, on_outage="open")), 4) == Limits()
    assert share_of(Limits(parallel=7), 1) == Limits(parallel=7)

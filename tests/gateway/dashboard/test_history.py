"""Ten minutes in buckets, by a clock in the test's hand."""

import time
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.backend import Usage
from gateway.dashboard.history import BUCKETS, MAX_TIMES, STEP, History, Used, quantile
from gateway.dashboard.record import Ended
from gateway.ledger import Ledger


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def ended(
    tier: str | None = "7b", first: float | None = 0.2, tenant: str = "acme", status: int = 200
) -> Ended:
    ledger = Ledger()
    usage = Usage(prompt_tokens=10, completion_tokens=5)
    ledger.open(tier or "7b", "7b/0").settled(None, usage, 0.0)
    return Ended(
        id="r", arrived=0.0, endpoint="chat", tenant=tenant, status=status, code=None, tier=tier, route=None,
        reason=None, seconds=1.0, first_text=first, ledger=ledger,
    )  # fmt: skip


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(clock: Clock) -> History:
    return History(clock)


def test_silence_leaves_empty_buckets(history: History, clock: Clock) -> None:
    history.finished(ended(first=0.1))
    clock.now += 2 * STEP
    history.finished(ended(first=0.3))
    series = history.series("7b")
    assert series.requests == [1, 0, 1]
    assert series.first_p50 == [0.1, None, 0.3]
    assert history.series("13b").requests == [0, 0, 0]


def test_tokens_are_a_rate_and_may_be_spread_over_the_time_they_took(history: History, clock: Clock) -> None:
    clock.now += 3 * STEP
    history.generated("7b", 40 * STEP, 3 * STEP)
    history.generated("7b", 5 * STEP)
    assert history.series("7b").tokens == [10.0, 10.0, 10.0, 15.0]


def test_what_began_before_the_history_is_spread_over_all_of_it(history: History, clock: Clock) -> None:
    history.generated("7b", STEP, 3600)
    assert history.series("7b").tokens == [1.0]


def test_a_clock_of_the_day_that_was_put_back_changes_nothing(history: History) -> None:
    history.generated("7b", STEP, -3600)  # since the day's clock says that it has not begun yet
    assert history.series("7b").tokens == [1.0]


def test_its_own_clock_is_never_put_back() -> None:
    with patch("time.time", return_value=0.0):
        history = History()
    assert history.buckets[0].number == pytest.approx(time.monotonic() / STEP, abs=2)


def test_it_forgets_and_never_grows(history: History, clock: Clock) -> None:
    for _ in range(3 * MAX_TIMES):
        history.finished(ended())
    assert len(history.first_tokens("7b")) == MAX_TIMES
    for _ in range(2 * BUCKETS):
        clock.now += STEP
        history.finished(ended())
    assert len(history.series("7b").requests) == BUCKETS
    assert len(history.first_tokens("7b")) == BUCKETS
    clock.now += 1e9  # the clock may leap
    assert history.series("7b").requests == [0] * BUCKETS


def test_the_last_minute_of_tenants(history: History, clock: Clock) -> None:
    history.finished(ended(tenant="old"))
    clock.now += 61
    history.finished(ended())
    history.finished(ended(tier=None, status=429))
    assert history.last_minute() == {"acme": Used(requests=2, refused=1, tokens=30, input_tokens=20)}


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0, 1))
def test_a_quantile_is_one_of_the_values_and_not_below_its_share(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert quantile([], share) is None

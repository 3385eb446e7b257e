"""What every store of limits promises, promise by promise."""

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from gateway.config import Budget, Limits
from gateway.limits import (
    LEASE_SECONDS,
    Amount,
    LimitExceeded,
    LimitStore,
    Reservation,
)
from gateway.prices import NANO

if TYPE_CHECKING:
    from tests.conformance.conftest import Clock

MINUTE = 60_000  # milliseconds
DAY = 24 * 60 * MINUTE
LEASE = round(LEASE_SECONDS * 1000)

CHRISTMAS = 1_766_620_800_000 + 24 * 3600 * 1000 - 30_000  # 2025-12-25 23:59:30 UTC

fresh_name = map("tenant-{}".format, itertools.count())


def tokens(count: int) -> Amount:
    return Amount(tokens=count)


def spending(money: float) -> Amount:
    return Amount(money=round(money * NANO))


ONE_TOKEN = Amount(tokens=1, input=1, output=1, money=1)


async def admitted(
    limits: LimitStore, allowed: Limits, tries: int, amount: Amount = ONE_TOKEN, tenant: str = "acme"
) -> int:
    """How many of `tries` concurrent requests get in."""
    outcomes = await asyncio.gather(
        *(limits.reserve(tenant, allowed, next(fresh_name), amount) for _ in range(tries)),
        return_exceptions=True,
    )
    unexpected = [o for o in outcomes if not isinstance(o, Reservation | LimitExceeded)]
    assert not unexpected
    return sum(isinstance(outcome, Reservation) for outcome in outcomes)


@pytest.mark.parametrize(
    "allowed",
    [
        Limits(requests_per_minute=100),
        Limits(tokens_per_minute=100),
        Limits(input_tokens_per_minute=100),
        Limits(output_tokens_per_minute=100),
        Limits(requests_per_minute=1, requests_burst=100),
        Limits(budget=Budget(per_day=100e-9)),
        Limits(budget=Budget(per_month=100e-9)),
        Limits(parallel=100),
        Limits(requests_per_minute=100, tokens_per_minute=1_000_000_000, parallel=1_000_000_000),
    ],
)
async def test_a_burst_of_concurrent_requests_gets_exactly_the_allowance(
    limits: LimitStore, allowed: Limits
) -> None:
    assert await admitted(limits, allowed, 180) == 100


async def test_a_refusal_by_one_limit_consumes_nothing_of_the_others(limits: LimitStore) -> None:
    allowed = Limits(requests_per_minute=2, tokens_per_minute=20, parallel=1)
    running = await limits.reserve("acme", allowed, "a", tokens(10))
    for number in range(5):
        with pytest.raises(LimitExceeded) as refusal:
            await limits.reserve("acme", allowed, f"b{number}", tokens(10))
        assert refusal.value.limit == "parallel"
    await limits.settle(running, allowed, tokens(10))
    await limits.reserve("acme", allowed, "c", tokens(10))


async def test_more_than_the_whole_allowance_is_refused_for_ever(limits: LimitStore) -> None:
    with pytest.raises(LimitExceeded) as refusal:
        await limits.reserve("acme", Limits(tokens_per_minute=100), "a", tokens(101))
    assert (refusal.value.limit, refusal.value.retry_after) == ("tokens", None)
    await limits.reserve("acme", Limits(tokens_per_minute=100), "b", tokens(100))


async def test_waiting_as_long_as_told_is_enough_and_not_a_millisecond_more(
    limits: LimitStore, clock: "Clock"
) -> None:
    allowed = Limits(tokens_per_minute=70)
    await limits.reserve("acme", allowed, "a", tokens(70))
    with pytest.raises(LimitExceeded) as refusal:
        await limits.reserve("acme", allowed, "b", tokens(3))
    assert refusal.value.retry_after is not None
    clock.milliseconds += round(refusal.value.retry_after * 1000) - 1
    with pytest.raises(LimitExceeded):
        await limits.reserve("acme", allowed, "c", tokens(3))
    clock.milliseconds += 1
    await limits.reserve("acme", allowed, "d", tokens(3))


async def test_a_lease_that_nobody_settles_expires(limits: LimitStore, clock: "Clock") -> None:
    allowed = Limits(parallel=1)
    forgotten = await limits.reserve("acme", allowed, "a", tokens(0))
    clock.milliseconds += LEASE - 1
    assert await admitted(limits, allowed, 1) == 0
    clock.milliseconds += 1
    assert await admitted(limits, allowed, 1) == 1
    await limits.settle(forgotten, allowed, tokens(0))  # too late to free somebody else's place
    assert await admitted(limits, allowed, 1) == 0


async def test_a_burst_smaller_than_the_rate_spreads_requests_out(limits: LimitStore, clock: "Clock") -> None:
    allowed = Limits(requests_per_minute=60, requests_burst=2)
    assert await admitted(limits, allowed, 10) == 2
    clock.milliseconds += 1000
    assert await admitted(limits, allowed, 10) == 1
    clock.milliseconds += MINUTE
    assert await admitted(limits, allowed, 10) == 2


@pytest.mark.parametrize(
    ("budget", "days"), [(Budget(per_day=1.0), 1), (Budget(per_month=1.0), 31), (Budget(per_month=1.0), 20)]
)
async def test_a_budget_begins_anew_with_its_period_and_not_before(
    limits: LimitStore, clock: "Clock", budget: Budget, days: int
) -> None:
    allowed = Limits(budget=budget)
    clock.milliseconds = CHRISTMAS - (CHRISTMAS % DAY) - (0 if days < 31 else 24 * DAY)
    clock.milliseconds -= 0 if days != 20 else 13 * DAY  # the 12th: 20 days are left of December
    await limits.reserve("acme", allowed, "a", spending(0.75))
    for number in range(days):
        with pytest.raises(LimitExceeded) as refusal:
            await limits.reserve("acme", allowed, f"b{number}", spending(0.5))
        assert refusal.value.retry_after == (days - number) * DAY / 1000
        clock.milliseconds += DAY
    await limits.reserve("acme", allowed, "c", spending(1.0))


async def test_money_goes_back_only_into_the_period_that_it_came_from(
    limits: LimitStore, clock: "Clock"
) -> None:
    allowed = Limits(budget=Budget(per_day=1.0, per_month=10.0))
    clock.milliseconds = CHRISTMAS
    yesterdays = await limits.reserve("acme", allowed, "a", spending(0.75))
    clock.milliseconds += MINUTE
    await limits.reserve("acme", allowed, "b", spending(0.5))
    await limits.settle(yesterdays, allowed, spending(0.25))
    last = await limits.reserve("acme", allowed, "c", spending(0.5))
    assert last.left["budget_day"].remaining == 0.0
    assert last.left["budget_month"].remaining == 10 - 0.25 - 1


async def test_a_clock_set_back_over_midnight_begins_no_budget_anew(
    limits: LimitStore, clock: "Clock"
) -> None:
    allowed = Limits(budget=Budget(per_day=1.0))
    clock.milliseconds = CHRISTMAS + MINUTE
    await limits.reserve("acme", allowed, "a", spending(1.0))
    clock.milliseconds = CHRISTMAS
    assert await admitted(limits, allowed, 1) == 0


async def test_a_budget_set_later_knows_what_was_spent_before(limits: LimitStore) -> None:
    await limits.reserve("acme", Limits(parallel=9), "a", spending(0.75))
    with pytest.raises(LimitExceeded) as refusal:
        await limits.reserve("acme", Limits(budget=Budget(per_month=1.0)), "b", spending(0.5))
    assert refusal.value.left["budget_month"].remaining == 0.25


async def test_a_look_tells_what_is_left_and_takes_nothing(limits: LimitStore, clock: "Clock") -> None:
    allowed = Limits(
        requests_per_minute=2, tokens_per_minute=100, parallel=1, budget=Budget(per_day=1.0, per_month=10.0)
    )
    clock.milliseconds = CHRISTMAS
    assert (await limits.look("acme", allowed))["budget_day"].remaining == 1.0
    taken = await limits.reserve(
        "acme", allowed, "a", Amount(tokens=40, input=30, output=10, money=NANO // 4)
    )
    for _ in range(3):
        assert await limits.look("acme", allowed) == taken.left
    assert taken.left["budget_day"].remaining == 0.75
    await limits.settle(taken, allowed, Amount(tokens=40, input=30, output=10, money=NANO // 2))
    clock.milliseconds += MINUTE
    tomorrow = await limits.look("acme", allowed)
    assert {name: left.remaining for name, left in tomorrow.items()} == {
        "requests": 2, "tokens": 100, "budget_day": 1.0, "budget_month": 9.5,
    }  # fmt: skip
    assert tomorrow["budget_day"].reset == (DAY - 30_000) / 1000
    assert await limits.look("nobody", Limits()) == {}


async def test_settling_gives_back_what_was_not_used_once(limits: LimitStore) -> None:
    allowed = Limits(tokens_per_minute=100, parallel=10)
    reservation = await limits.reserve("acme", allowed, "a", tokens(100))
    await asyncio.gather(*(limits.settle(reservation, allowed, tokens(40)) for _ in range(10)))
    await limits.reserve("acme", allowed, "b", tokens(60))
    await limits.settle(reservation, allowed, tokens(40))
    assert await admitted(limits, allowed, 1) == 0


async def test_what_ran_is_a_request_and_what_never_ran_is_given_back_whole(limits: LimitStore) -> None:
    allowed = Limits(
        requests_per_minute=3, tokens_per_minute=100, parallel=1, budget=Budget(per_day=1.0, per_month=10.0)
    )
    asked = Amount(tokens=90, input=50, output=40, money=NANO // 2)
    before = await limits.look("acme", allowed)
    taken = await limits.reserve("acme", allowed, "a", asked)
    for _ in range(2):
        await limits.settle(taken, allowed, None)
        assert await limits.look("acme", allowed) == before
    ran = await limits.reserve("acme", allowed, "b", asked)
    for used in (tokens(0), None, None):  # once settled it is settled
        await limits.settle(ran, allowed, used)
        left = await limits.look("acme", allowed)
        assert {name: each.remaining for name, each in left.items()} == {
            "requests": 2, "tokens": 100, "budget_day": 1.0, "budget_month": 10.0,
        }  # fmt: skip


async def test_nothing_is_given_back_that_was_not_taken(limits: LimitStore, clock: "Clock") -> None:
    allowed = Limits(requests_per_minute=2, requests_burst=60, tokens_per_minute=100)
    expired = await limits.reserve("acme", allowed, "a", tokens(10))
    clock.milliseconds += LEASE
    other = Reservation(tenant="acme", lease="never taken", amount=tokens(10), periods=expired.periods)
    for number in range(3):
        await limits.reserve("acme", allowed, f"b{number}", tokens(10))
    before = await limits.look("acme", allowed)
    for gone in (expired, other):
        await limits.settle(gone, allowed, None)
        assert await limits.look("acme", allowed) == before


async def test_settling_takes_what_was_used_beyond_the_reservation(limits: LimitStore) -> None:
    allowed = Limits(tokens_per_minute=100)
    await limits.settle(await limits.reserve("acme", allowed, "a", tokens(10)), allowed, tokens(160))
    with pytest.raises(LimitExceeded) as refusal:
        await limits.reserve("acme", allowed, "b", tokens(10))
    assert refusal.value.retry_after == 0.7 * 60  # 160 - 100 + 10 tokens too many, at 100 a minute


async def test_tenants_do_not_share(limits: LimitStore) -> None:
    allowed = Limits(requests_per_minute=1, parallel=1)
    assert [
        await admitted(limits, allowed, 3, tenant=tenant) for tenant in ("acme", "acme.eu", "umbrella")
    ] == [1] * 3


async def test_a_clock_set_back_locks_nobody_out_for_longer_than_a_minute(
    limits: LimitStore, clock: "Clock"
) -> None:
    allowed = Limits(requests_per_minute=1, parallel=1)
    await limits.reserve("acme", allowed, "a", tokens(0))
    clock.milliseconds -= 24 * 60 * MINUTE  # a reboot, seen by a monotonic clock
    assert await admitted(limits, allowed, 1) == 0
    clock.milliseconds += MINUTE
    assert await admitted(limits, allowed, 1) == 1


async def test_a_tenant_without_limits_is_not_counted(limits: LimitStore) -> None:
    reservation = await limits.reserve("acme", Limits(), "a", tokens(10**12))
    assert reservation.left == {}
    await limits.settle(reservation, Limits(), tokens(10**12))


async def test_a_limit_that_the_configuration_changed_counts_what_was_taken_before(
    limits: LimitStore,
) -> None:
    assert await admitted(limits, Limits(requests_per_minute=10), 8) == 8
    assert await admitted(limits, Limits(requests_per_minute=9), 8) == 1
    assert await admitted(limits, Limits(tokens_per_minute=9), 8) == 8
    assert await admitted(limits, Limits(requests_per_minute=9), 20) == 9  # unlimited in between: forgotten


async def test_cancelled_callers_leave_nothing_taken(open_limits: Callable[[], LimitStore]) -> None:
    allowed, choice = Limits(parallel=50, tokens_per_minute=1000), random.Random(5)
    limits = open_limits()
    callers = [
        asyncio.create_task(limits.reserve("acme", allowed, next(fresh_name), tokens(20))) for _ in range(50)
    ]
    for caller in callers:
        if choice.random() < 0.5:
            await asyncio.sleep(choice.random() * 0.002)
        caller.cancel()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Reservation):
            await limits.settle(outcome, allowed, tokens(0))
    assert {type(outcome) for outcome in outcomes} <= {Reservation, asyncio.CancelledError}
    for _ in range(200):  # what is undone in the background takes a moment
        if await admitted(limits, allowed, 50, tokens(20)) == 50:
            break
        await asyncio.sleep(0.05)
    await limits.close()

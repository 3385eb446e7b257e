"""What every store of limits promises, held against a plain account of who took what and when."""

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config import Limits
from gateway.limits import LEASE_SECONDS, LimitExceeded, LimitStore, Remaining, Reservation

if TYPE_CHECKING:
    from tests.conformance.conftest import Clock

MINUTE = 60_000  # milliseconds
LEASE = round(LEASE_SECONDS * 1000)

fresh_name = map("tenant-{}".format, itertools.count())


@dataclass
class Oracle:
    """The same promises in fractions of units and no cleverness."""

    limits: Limits
    levels: dict[str, Fraction] = field(
        default_factory=lambda: {"requests": Fraction(0), "tokens": Fraction(0)}
    )
    leases: dict[str, tuple[int, int]] = field(default_factory=dict)  # lease → (expires, tokens)
    at: int = 0

    def limit(self, name: str) -> int | None:
        return self.limits.requests_per_minute if name == "requests" else self.limits.tokens_per_minute

    def pass_time(self, now: int) -> None:
        for name, level in self.levels.items():
            self.levels[name] = max(
                Fraction(0), level - Fraction((self.limit(name) or 0) * (now - self.at), MINUTE)
            )
        self.leases = {lease: held for lease, held in self.leases.items() if now < held[0]}
        self.at = now

    def waits(self, tokens: int) -> dict[str, float]:
        """Milliseconds to wait, infinite for ever, for each limit that stands against the request."""
        waits: dict[str, float] = {}
        for name, units in (("requests", 1), ("tokens", tokens)):
            limit = self.limit(name)
            if limit is None or self.levels[name] + units <= limit:
                continue
            over = self.levels[name] + units - limit
            waits[name] = float("inf") if units > limit else ceil(over * MINUTE / limit)
        if self.limits.parallel is not None and len(self.leases) >= self.limits.parallel:
            waits["parallel"] = 1000
        return waits

    def take(self, now: int, lease: str, tokens: int) -> None:
        self.levels["requests"] += 1
        self.levels["tokens"] += tokens
        self.leases[lease] = (now + LEASE, tokens)

    def settle(self, lease: str, used: int) -> None:
        held = self.leases.pop(lease, None)
        if held is not None:
            self.levels["tokens"] = max(Fraction(0), self.levels["tokens"] + used - held[1])

    def left(self, name: str) -> Remaining | None:
        limit = self.limit(name)
        if limit is None:
            return None
        level = self.levels[name]
        return Remaining(
            limit=limit, remaining=max(0, floor(limit - level)), reset=ceil(level * MINUTE / limit) / 1000
        )


small = st.none() | st.integers(1, 5)
some_limits = st.builds(
    Limits, requests_per_minute=small, tokens_per_minute=st.none() | st.integers(1, 100), parallel=small
)
pauses = st.sampled_from([0, 0, 1, 17, 500, 7_001, 30_000, MINUTE, LEASE - 1, LEASE])
reserving = st.tuples(st.just("reserve"), pauses, st.integers(0, 120))
settling = st.tuples(st.just("settle"), pauses, st.integers(0, 150))


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(some_limits, st.lists(reserving | settling, max_size=30), st.randoms())
async def test_every_answer_is_the_one_that_plain_counting_gives(
    limits: LimitStore,
    clock: "Clock",
    allowed: Limits,
    steps: list[tuple[str, int, int]],
    choice: random.Random,
) -> None:
    tenant, oracle = next(fresh_name), Oracle(allowed, at=clock.milliseconds)
    taken: list[Reservation] = []
    for number, (step, pause, amount) in enumerate(steps):
        clock.milliseconds += pause
        oracle.pass_time(clock.milliseconds)
        if step == "reserve":
            reservation = await reserve_as_the_oracle(limits, oracle, tenant, f"lease-{number}", amount)
            taken += [reservation] if reservation else []
        elif taken:
            settled = choice.choice(taken)  # also one that is settled already, or has expired
            oracle.settle(settled.lease, amount)
            await limits.settle(settled, allowed, amount)


async def reserve_as_the_oracle(
    limits: LimitStore, oracle: Oracle, tenant: str, lease: str, tokens: int
) -> Reservation | None:
    waits = oracle.waits(tokens)
    if waits:
        with pytest.raises(LimitExceeded) as refusal:
            await limits.reserve(tenant, oracle.limits, lease, tokens)
        longest = max(waits.values())
        assert waits[refusal.value.limit] == longest
        assert refusal.value.retry_after == (None if longest == float("inf") else longest / 1000)
        assert refusal.value.requests_left == oracle.left("requests")
        assert refusal.value.tokens_left == oracle.left("tokens")
        return None
    oracle.take(oracle.at, lease, tokens)
    reservation = await limits.reserve(tenant, oracle.limits, lease, tokens)
    assert reservation == Reservation(
        tenant=tenant,
        lease=lease,
        tokens=tokens,
        requests_left=oracle.left("requests"),
        tokens_left=oracle.left("tokens"),
    )
    return reservation


async def admitted(
    limits: LimitStore, allowed: Limits, tries: int, tokens: int = 1, tenant: str = "acme"
) -> int:
    """How many of `tries` concurrent requests get in."""
    outcomes = await asyncio.gather(
        *(limits.reserve(tenant, allowed, next(fresh_name), tokens) for _ in range(tries)),
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
    running = await limits.reserve("acme", allowed, "a", 10)
    for number in range(5):
        with pytest.raises(LimitExceeded) as refusal:
            await limits.reserve("acme", allowed, f"b{number}", 10)
        assert refusal.value.limit == "parallel"
    await limits.settle(running, allowed, 10)
    await limits.reserve("acme", allowed, "c", 10)


async def test_more_than_the_whole_allowance_is_refused_for_ever(limits: LimitStore) -> None:
    with pytest.raises(LimitExceeded) as refusal:
        await limits.reserve("acme", Limits(tokens_per_minute=100), "a", 101)
    assert (refusal.value.limit, refusal.value.retry_after) == ("tokens", None)
    await limits.reserve("acme", Limits(tokens_per_minute=100), "b", 100)


async def test_waiting_as_long_as_told_is_enough_and_not_a_millisecond_more(
    limits: LimitStore, clock: "Clock"
) -> None:
    allowed = Limits(tokens_per_minute=70)
    await limits.reserve("acme", allowed, "a", 70)
    with pytest.raises(LimitExceeded) as refusal:
        await limits.reserve("acme", allowed, "b", 3)
    assert refusal.value.retry_after is not None
    clock.milliseconds += round(refusal.value.retry_after * 1000) - 1
    with pytest.raises(LimitExceeded):
        await limits.reserve("acme", allowed, "c", 3)
    clock.milliseconds += 1
    await limits.reserve("acme", allowed, "d", 3)


async def test_a_lease_that_nobody_settles_expires(limits: LimitStore, clock: "Clock") -> None:
    allowed = Limits(parallel=1)
    forgotten = await limits.reserve("acme", allowed, "a", 0)
    clock.milliseconds += LEASE - 1
    assert await admitted(limits, allowed, 1) == 0
    clock.milliseconds += 1
    assert await admitted(limits, allowed, 1) == 1
    await limits.settle(forgotten, allowed, 0)  # too late to free somebody else's place
    assert await admitted(limits, allowed, 1) == 0


async def test_settling_gives_back_what_was_not_used_once(limits: LimitStore) -> None:
    allowed = Limits(tokens_per_minute=100, parallel=10)
    reservation = await limits.reserve("acme", allowed, "a", 100)
    await asyncio.gather(*(limits.settle(reservation, allowed, 40) for _ in range(10)))
    await limits.reserve("acme", allowed, "b", 60)
    await limits.settle(reservation, allowed, 40)
    assert await admitted(limits, allowed, 1) == 0


async def test_settling_takes_what_was_used_beyond_the_reservation(limits: LimitStore) -> None:
    allowed = Limits(tokens_per_minute=100)
    await limits.settle(await limits.reserve("acme", allowed, "a", 10), allowed, 160)
    with pytest.raises(LimitExceeded) as refusal:
        await limits.reserve("acme", allowed, "b", 10)
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
    await limits.reserve("acme", allowed, "a", 0)
    clock.milliseconds -= 24 * 60 * MINUTE  # a reboot, seen by a monotonic clock
    assert await admitted(limits, allowed, 1) == 0
    clock.milliseconds += MINUTE
    assert await admitted(limits, allowed, 1) == 1


async def test_a_tenant_without_limits_is_not_counted(limits: LimitStore) -> None:
    reservation = await limits.reserve("acme", Limits(), "a", 10**12)
    assert (reservation.requests_left, reservation.tokens_left) == (None, None)
    await limits.settle(reservation, Limits(), 10**12)


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
    callers = [asyncio.create_task(limits.reserve("acme", allowed, next(fresh_name), 20)) for _ in range(50)]
    for caller in callers:
        if choice.random() < 0.5:
            await asyncio.sleep(choice.random() * 0.002)
        caller.cancel()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Reservation):
            await limits.settle(outcome, allowed, 0)
    assert {type(outcome) for outcome in outcomes} <= {Reservation, asyncio.CancelledError}
    for _ in range(200):  # what is undone in the background takes a moment
        if await admitted(limits, allowed, 50, tokens=20) == 50:
            break
        await asyncio.sleep(0.05)
    await limits.close()

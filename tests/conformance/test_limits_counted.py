"""Every store of limits answers as a plain account does of who took what and when."""

import itertools
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.config import Budget, Limits
from gateway.limits import (
    LEASE_SECONDS,
    NOTHING,
    Amount,
    LimitExceeded,
    LimitName,
    LimitStore,
    Remaining,
    Reservation,
)
from gateway.prices import NANO

if TYPE_CHECKING:
    from tests.conformance.conftest import Clock

MINUTE = 60_000  # milliseconds
LEASE = round(LEASE_SECONDS * 1000)

fresh_name = map("tenant-{}".format, itertools.count())

RATES: tuple[LimitName, ...] = ("requests", "tokens", "input_tokens", "output_tokens")
BUDGETS: tuple[LimitName, ...] = ("budget_day", "budget_month")


def units(name: LimitName, amount: Amount) -> int:
    return {"tokens": amount.tokens, "input_tokens": amount.input, "output_tokens": amount.output}.get(
        name, 1
    )


def period(name: LimitName, milliseconds: int) -> tuple[int, ...]:
    date = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return date.timetuple()[: 3 if name == "budget_day" else 2]


def end_of(name: LimitName, milliseconds: int) -> int:
    """POSIX milliseconds at which the period is over, found by going on hour by hour."""
    hour = 60 * MINUTE
    later = milliseconds - milliseconds % hour + hour
    while period(name, later) == period(name, milliseconds):
        later += hour
    return later


@dataclass
class Oracle:
    """The same promises in fractions of units and no cleverness."""

    limits: Limits
    levels: dict[LimitName, Fraction] = field(default_factory=lambda: dict.fromkeys(RATES, Fraction(0)))
    spent: dict[LimitName, int] = field(default_factory=lambda: dict.fromkeys(BUDGETS, 0))
    leases: dict[str, tuple[int, int, Amount]] = field(default_factory=dict)  # → (taken, expires, amount)
    at: int = 0

    def rate(self, name: LimitName) -> int:
        """0 where unlimited."""
        return int(getattr(self.limits, f"{name}_per_minute") or 0)

    def burst(self, name: LimitName) -> int:
        return int(getattr(self.limits, f"{name}_burst") or self.rate(name))

    def budget(self, name: LimitName) -> int:
        """Billionths, 0 where unlimited."""
        budget = self.limits.budget
        return round(((budget.per_day if name == "budget_day" else budget.per_month) or 0) * NANO)

    def pass_time(self, now: int) -> None:
        for name, level in self.levels.items():
            self.levels[name] = max(Fraction(0), level - Fraction(self.rate(name) * (now - self.at), MINUTE))
        for name in BUDGETS:
            if period(name, now) != period(name, self.at):
                self.spent[name] = 0
        self.leases = {lease: held for lease, held in self.leases.items() if now < held[1]}
        self.at = now

    def waits(self, amount: Amount) -> dict[LimitName, float]:
        """Milliseconds to wait, infinite for ever, for each limit that stands against the request."""
        waits: dict[LimitName, float] = {}
        for name in RATES:
            over = self.levels[name] + units(name, amount) - self.burst(name)
            if self.rate(name) and over > 0:
                never = units(name, amount) > self.burst(name)
                waits[name] = float("inf") if never else ceil(over * MINUTE / self.rate(name))
        for name in BUDGETS:
            if self.budget(name) and self.spent[name] + amount.money > self.budget(name):
                never = amount.money > self.budget(name)
                waits[name] = float("inf") if never else end_of(name, self.at) - self.at
        if self.limits.parallel is not None and len(self.leases) >= self.limits.parallel:
            waits["parallel"] = 1000
        return waits

    def take(self, now: int, lease: str, amount: Amount) -> None:
        for name in RATES:
            self.levels[name] += units(name, amount)
        for name in BUDGETS:
            self.spent[name] += amount.money
        self.leases[lease] = (now, now + LEASE, amount)

    def settle(self, lease: str, used: Amount | None) -> None:
        """`used`: None where it never ran."""
        held = self.leases.pop(lease, None)
        if held is None:
            return
        taken, _, amount = held
        for name in RATES:
            back = units(name, amount) - (0 if used is None else units(name, used))
            self.levels[name] = max(Fraction(0), self.levels[name] - back)
        for name in BUDGETS:
            if period(name, taken) == period(name, self.at):
                spent = 0 if used is None else used.money
                self.spent[name] = max(0, self.spent[name] + spent - amount.money)

    @property
    def left(self) -> dict[LimitName, Remaining]:
        left: dict[LimitName, Remaining] = {}
        for name in RATES:
            if rate := self.rate(name):
                level, burst = self.levels[name], self.burst(name)
                remaining = max(0, floor(burst - level))
                left[name] = Remaining(
                    limit=burst, remaining=remaining, reset=ceil(level * MINUTE / rate) / 1000
                )
        for name in BUDGETS:
            if budget := self.budget(name):
                remaining = max(0, budget - self.spent[name])
                reset = (end_of(name, self.at) - self.at) / 1000
                left[name] = Remaining(limit=budget / NANO, remaining=remaining / NANO, reset=reset)
        return left


small = st.none() | st.integers(1, 5)

some = st.none() | st.integers(1, 100)

money = st.none() | st.sampled_from([0.000_000_001, 0.01, 0.25, 1.0])


@st.composite
def some_limits(draw: st.DrawFn) -> Limits:
    fields = {
        "requests_per_minute": draw(small),
        "tokens_per_minute": draw(some),
        "input_tokens_per_minute": draw(some),
        "output_tokens_per_minute": draw(some),
    }
    bursts = {
        name.replace("per_minute", "burst"): draw(some) for name, rate in fields.items() if rate is not None
    }
    budget = Budget(per_day=draw(money), per_month=draw(money))
    return Limits(**fields, **bursts, parallel=draw(small), budget=budget)


DAY = 24 * 60 * MINUTE

pauses = st.sampled_from([0, 0, 1, 17, 500, 7_001, 30_000, MINUTE, LEASE - 1, LEASE, DAY, 31 * DAY])

amounts = st.builds(
    Amount,
    tokens=st.integers(0, 120),
    input=st.integers(0, 120),
    output=st.integers(0, 120),
    money=st.sampled_from([0, 1, NANO // 100, NANO // 4, 2 * NANO]),
)

steps = st.tuples(st.sampled_from(["reserve", "settle", "give up"]), pauses, amounts)


def lonely(end: str) -> tuple[Limits, list[tuple[str, int, Amount]], random.Random]:
    """The only request of a minute ends at once, and another one comes."""
    steps = [(step, 0, NOTHING) for step in ("reserve", end, "reserve")]
    return Limits(requests_per_minute=1), steps, random.Random(1)


@settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(some_limits(), st.lists(steps, max_size=30), st.randoms())
@example(*lonely("settle"))
@example(*lonely("give up"))
async def test_every_answer_is_the_one_that_plain_counting_gives(
    limits: LimitStore,
    clock: "Clock",
    allowed: Limits,
    steps: list[tuple[str, int, Amount]],
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
            used = None if step == "give up" else amount
            oracle.settle(settled.lease, used)
            await limits.settle(settled, allowed, used)


async def reserve_as_the_oracle(
    limits: LimitStore, oracle: Oracle, tenant: str, lease: str, amount: Amount
) -> Reservation | None:
    waits = oracle.waits(amount)
    if waits:
        with pytest.raises(LimitExceeded) as refusal:
            await limits.reserve(tenant, oracle.limits, lease, amount)
        longest = max(waits.values())
        assert waits[refusal.value.limit] == longest
        assert refusal.value.retry_after == (None if longest == float("inf") else longest / 1000)
        assert refusal.value.left == oracle.left
        return None
    oracle.take(oracle.at, lease, amount)
    reservation = await limits.reserve(tenant, oracle.limits, lease, amount)
    assert (reservation.tenant, reservation.lease, reservation.amount) == (tenant, lease, amount)
    assert reservation.left == oracle.left
    return reservation

"""What a tenant has taken of its limits, and the decision over all of them: pure, the stores apply it.

Giving back lowers the debt at once. So over a request's whole life no more is used than burst and rate allow, but the
moment it is settled may see a burst of what it had reserved and did not use. Money is counted for every tenant that
has a limit, so that a budget set at noon knows of the morning.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from gateway import gcra
from gateway.config import Limits
from gateway.gcra import Bucket
from gateway.limits import (
    LEASE_SECONDS,
    NOTHING,
    Amount,
    Left,
    LimitExceeded,
    LimitName,
    Remaining,
    Reservation,
)
from gateway.periods import Periods, counted_in, ends, periods
from gateway.prices import NANO, billionths

LEASE = round(LEASE_SECONDS * 1000)  # milliseconds
KNOWN = 1024  # tenants' limits, which are asked for several times in each request
PARALLEL_WAIT = 1_000  # milliseconds; a place is free when a request ends, and nobody knows when that is

RATES: tuple[LimitName, ...] = ("requests", "tokens", "input_tokens", "output_tokens")
BUDGETS: tuple[LimitName, ...] = ("budget_day", "budget_month")


class Account(msgspec.Struct, frozen=True):
    """Debts as they stood `at` milliseconds, money as of `wall`. An unlimited bucket has no debt.

    `at` is of whatever clock the store has for rates; `wall` is POSIX time.
    """

    debts: tuple[int, ...] = (0, 0, 0, 0)  # of RATES, in credits (see `gateway.gcra`)
    at: int = 0
    spent: tuple[int, ...] = (0, 0)  # of BUDGETS, in billionths, in `periods`
    periods: Periods = (0, 0)
    wall: int = 0

    def opened(self, limits: Limits, at: int, wall: int) -> "Account":
        """As of now; one from a later clock (before a reboot, or set back) keeps its debts from here on."""
        day, month = map(counted_in, self.periods, periods(wall))
        elapsed = at - self.at
        return Account(
            tuple([
                0 if bucket is None else bucket.leaked(debt, elapsed)
                for debt, bucket in zip(self.debts, buckets(limits), strict=True)
            ]),
            at,
            self._within((day, month), self.spent),
            (day, month),
            wall,
        )  # fmt: skip

    def taken(self, limits: Limits, amount: Amount) -> "Account":
        """After one request of this amount."""
        return self._moved(limits, units_of(1, amount), (amount.money, amount.money))

    def settled(self, limits: Limits, reservation: Reservation, used: Amount | None) -> "Account":
        units, money = beyond(reservation.amount, used)
        return self._moved(limits, units, self._within(reservation.periods, (money, money)))

    def _within(self, others: Periods, money: tuple[int, ...]) -> tuple[int, ...]:
        """The money of the periods that are this account's too; nothing of others."""
        pairs = zip(self.periods, others, money, strict=True)
        return tuple([amount if mine == other else 0 for mine, other, amount in pairs])

    def _moved(self, limits: Limits, units: Sequence[int], money: Sequence[int]) -> "Account":
        debts = zip(self.debts, buckets(limits), units, strict=True)
        return Account(
            tuple([0 if bucket is None else gcra.moved(debt, more) for debt, bucket, more in debts]),
            self.at,
            tuple([max(0, before + more) for before, more in zip(self.spent, money, strict=True)]),
            self.periods,
            self.wall,
        )

    def check(self) -> None:
        """Raises AssertionError where a debt or what was spent is negative."""
        assert min(self.debts) >= 0 and min(self.spent) >= 0, self


@lru_cache(KNOWN)
def buckets(limits: Limits) -> tuple[Bucket | None, ...]:
    """Of RATES; None where unlimited."""
    rates = (
        (limits.requests_per_minute, limits.requests_burst),
        (limits.tokens_per_minute, limits.tokens_burst),
        (limits.input_tokens_per_minute, limits.input_tokens_burst),
        (limits.output_tokens_per_minute, limits.output_tokens_burst),
    )
    return tuple(None if rate is None else Bucket(rate, burst or rate) for rate, burst in rates)


@lru_cache(KNOWN)
def budgets(limits: Limits) -> tuple[int | None, int | None]:
    """Of BUDGETS, in billionths; None where unlimited."""
    day, month = limits.budget.per_day, limits.budget.per_month
    return (None if day is None else billionths(day), None if month is None else billionths(month))


def units_of(requests: int, amount: Amount) -> tuple[int, int, int, int]:
    """Of RATES."""
    return (requests, amount.tokens, amount.input, amount.output)


def beyond(reserved: Amount, used: Amount | None) -> tuple[list[int], int]:
    """By how many units of RATES, and how much money, more was used than reserved; `used` as in `LimitStore.settle`."""
    ran, spent = (0, NOTHING) if used is None else (1, used)
    pairs = zip(units_of(ran, spent), units_of(1, reserved), strict=True)
    return [now - then for now, then in pairs], spent.money - reserved.money


@lru_cache(KNOWN)
def unlimited(limits: Limits) -> bool:
    """Nothing to count, so that no store has to be asked."""
    return limits.parallel is None and not any((*buckets(limits), *budgets(limits)))


def alive(expires: int, now: int) -> bool:
    """Whether a lease counts. One that expires too late was taken on another clock, before a reboot."""
    return now < expires <= now + LEASE + gcra.MINUTE


def obstacles(account: Account, limits: Limits, amount: Amount, running: int) -> dict[LimitName, int | None]:
    """The limits that stand against one more request, each with the milliseconds to wait (None: for ever).

    `account` is as of now; `running`: leases that count.
    """
    waits: dict[LimitName, int | None] = {}
    for name, bucket, debt, units in zip(
        RATES, buckets(limits), account.debts, units_of(1, amount), strict=True
    ):
        waits[name] = 0 if bucket is None else bucket.wait(debt, units)
    for name, budget, spent, end in _budgeted(account, limits):
        over = spent + amount.money > budget
        waits[name] = None if amount.money > budget else end - account.wall if over else 0
    if limits.parallel is not None:
        waits["parallel"] = PARALLEL_WAIT if running >= limits.parallel else 0
    return {name: wait for name, wait in waits.items() if wait != 0}


def granted(account: Account, limits: Limits, tenant: str, lease: str, amount: Amount) -> Reservation:
    """`account` is as it stands after the taking."""
    return Reservation(
        tenant=tenant, lease=lease, amount=amount, periods=account.periods, left=left_of(account, limits)
    )


def refused(account: Account, limits: Limits, standing: dict[LimitName, int | None]) -> LimitExceeded:
    """The refusal names the limit that stands longest."""
    limit = max(standing, key=lambda name: _length(standing[name]))
    wait = standing[limit]
    retry_after = None if wait is None else wait / 1000
    return LimitExceeded(limit=limit, retry_after=retry_after, left=left_of(account, limits))


def _length(wait: int | None) -> float:
    return float("inf") if wait is None else wait


def _budgeted(account: Account, limits: Limits) -> Iterator[tuple[LimitName, int, int, int]]:
    """Name, budget, money spent and POSIX milliseconds at its end, of each budget that there is."""
    for index, (name, budget) in enumerate(zip(BUDGETS, budgets(limits), strict=True)):
        if budget is not None:
            yield name, budget, account.spent[index], ends(account.periods)[index]


def left_of(account: Account, limits: Limits) -> Left:
    """`account` is as of now."""
    left: dict[LimitName, Remaining] = {}
    for name, bucket, debt in zip(RATES, buckets(limits), account.debts, strict=True):
        if bucket is not None:
            left[name] = Remaining(
                limit=bucket.burst, remaining=bucket.remaining(debt), reset=bucket.reset(debt) / 1000
            )
    for name, budget, spent, end in _budgeted(account, limits):
        remaining = max(0, budget - spent) / NANO
        left[name] = Remaining(limit=budget / NANO, remaining=remaining, reset=(end - account.wall) / 1000)
    return left

"""Limits of a tenant: one atomic decision before the work, settled on what was really used.

Requests and tokens per minute are GCRA (generic cell rate algorithm) buckets; parallel requests are leases that
expire, so that a killed gateway leaks nothing; budgets are counters of a UTC day and a calendar month. A refusal
consumes nothing. A lease that expires unsettled leaves tokens and money counted as they were reserved.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec

from gateway.config import Limits
from gateway.prices import written

LEASE_SECONDS = 660.0  # longer than any request may take

LimitName = Literal[
    "requests", "tokens", "input_tokens", "output_tokens", "parallel", "budget_day", "budget_month"
]
BUDGETS = frozenset({"budget_day", "budget_month"})


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """What a request takes, or took, beside itself. `money` is in billionths (see `gateway.prices`).

    `tokens` may be less than `input` and `output` together: at worst these are of different tiers.
    """

    tokens: int = 0
    input: int = 0
    output: int = 0
    money: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            tokens=self.tokens + other.tokens,
            input=self.input + other.input,
            output=self.output + other.output,
            money=self.money + other.money,
        )


NOTHING = Amount()


class Remaining(msgspec.Struct, frozen=True, kw_only=True):
    """For the headers `x-ratelimit-{limit,remaining,reset}-*`. Of budgets in money, else in whole units."""

    limit: float
    remaining: float
    reset: float  # seconds until it is full again


Left = Mapping[LimitName, Remaining]
"""What is left of each limit that there is; parallel requests are not told."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken; `settle` gives back the rest. `periods`: day and month that the money was taken in."""

    tenant: str
    lease: str  # the request's id
    amount: Amount
    periods: tuple[int, int]
    left: Left = {}


class LimitExceeded(Exception):
    """Nothing was consumed. `retry_after` is in seconds; None when waiting cannot help (more than the whole allowance).

    An ordinary class: a frozen dataclass cannot be raised through a context manager, which sets `__traceback__`.
    """

    def __init__(self, *, limit: LimitName, retry_after: float | None, left: Left | None = None) -> None:
        when = "never fits" if retry_after is None else f"fits in {retry_after:.3f} s"
        super().__init__(f"{limit}: {when}")
        self.limit: LimitName = limit
        self.retry_after = retry_after
        self.left: Left = left or {}


class LimitStoreUnavailable(Exception):
    """The store does not answer."""


class Unsure(LimitStoreUnavailable):
    """Nor does anybody know whether it has taken what it was asked for. That is given back when it answers; who runs
    all the same keeps it instead, and settles it."""

    def __init__(self, reason: str, keep: Callable[[], Reservation | None]) -> None:
        """`keep`: the reservation that there may be, from here on the caller's to settle; None where it is given back
        already."""
        super().__init__(reason)
        self.keep = keep


class LimitStore(Protocol):
    """Clocks are injected by tests; Redis uses its own unless a test says otherwise."""

    async def reserve(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> Reservation:
        """Take one request, `amount` and one parallel place, or nothing; `lease` is never used twice.

        Raises LimitExceeded, LimitStoreUnavailable (of which Unsure is one).
        """
        ...

    async def settle(self, reservation: Reservation, limits: Limits, used: Amount | None) -> None:
        """Give back the place and what was not `used` (or take what is missing). Idempotent per lease.

        What ran counts as one request, whatever became of it. `used` is None where nothing ever ran: then all is given
        back, the request too. A lease that has expired is gone: nothing is given back or taken. Money goes back only
        into the day and the month that it was taken from. Raises LimitStoreUnavailable. A caller who is cancelled does
        not undo it, see `gateway.limits_guard`.
        """
        ...

    async def look(self, tenant: str, limits: Limits) -> Left:
        """What is left now; nothing is taken. Raises LimitStoreUnavailable."""
        ...

    async def close(self) -> None: ...


def ratelimit_headers(outcome: Reservation | LimitExceeded) -> dict[str, str]:
    """OpenAI's `x-ratelimit-*` headers, and what tells a refused client when to come back, if ever.

    `retry-after` has whole seconds, at least 1; the SDKs prefer the exact `retry-after-ms`. An SDK must not sit and
    wait for tomorrow's budget, so of that one only the reset is told.
    """
    headers: dict[str, str] = {}
    for name, left in outcome.left.items():
        words = name.replace("_", "-")
        headers[f"x-ratelimit-limit-{words}"] = written(left.limit)
        headers[f"x-ratelimit-remaining-{words}"] = written(left.remaining)
        headers[f"x-ratelimit-reset-{words}"] = _duration(left.reset)
    if isinstance(outcome, LimitExceeded):
        headers |= _retry(None if outcome.limit in BUDGETS else outcome.retry_after)
    return headers


def _retry(after: float | None) -> dict[str, str]:
    if after is None:
        return {"x-should-retry": "false"}
    return {
        "retry-after": str(max(1, math.ceil(after))),
        "retry-after-ms": str(max(1, math.ceil(after * 1000))),
    }


def _duration(seconds: float) -> str:
    """As OpenAI writes them: "250ms", "1s", "1.5s", "6m0s". Rounded up to a millisecond."""
    milliseconds = math.ceil(seconds * 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    whole = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{whole}" if minutes else whole

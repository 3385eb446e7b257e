"""Limits of a tenant: one atomic decision before the work, settled on what was really used.

Requests and tokens per minute are GCRA (generic cell rate algorithm) buckets that hold one minute's allowance;
parallel requests are leases that expire, so that a killed gateway leaks nothing. A refusal consumes nothing.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.config import Limits

LEASE_SECONDS = 660.0  # longer than any request may take

LimitName = Literal["requests", "tokens", "parallel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """For the headers `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`; None where unlimited."""

    limit: int
    remaining: int
    reset: float  # seconds until it is full again


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What was taken; `settle` gives back the rest."""

    tenant: str
    lease: str  # the request's id
    tokens: int
    requests_left: Remaining | None
    tokens_left: Remaining | None


class LimitExceeded(Exception):
    """Nothing was consumed. `retry_after` is in seconds; None when waiting cannot help (more than the whole allowance).

    An ordinary class: a frozen dataclass cannot be raised through a context manager, which sets `__traceback__`.
    """

    def __init__(
        self,
        *,
        limit: LimitName,
        retry_after: float | None,
        requests_left: Remaining | None = None,
        tokens_left: Remaining | None = None,
    ) -> None:
        when = "never fits" if retry_after is None else f"fits in {retry_after:.3f} s"
        super().__init__(f"{limit}: {when}")
        self.limit: LimitName = limit
        self.retry_after = retry_after
        self.requests_left = requests_left
        self.tokens_left = tokens_left


class LimitStoreUnavailable(Exception):
    """The store does not answer."""


class LimitStore(Protocol):
    """`now` is injected by tests; Redis uses its own clock unless a test says otherwise."""

    async def reserve(self, tenant: str, limits: Limits, lease: str, tokens: int) -> Reservation:
        """Take one request, `tokens` tokens and one parallel place, or nothing; `lease` is never used twice.

        Raises LimitExceeded, LimitStoreUnavailable.
        """
        ...

    async def settle(self, reservation: Reservation, limits: Limits, used: int) -> None:
        """Give back the place and the tokens beyond `used` (or take what is missing). Idempotent per lease.

        A lease that has expired is gone: nothing is given back or taken. Raises LimitStoreUnavailable.
        """
        ...

    async def close(self) -> None: ...


def ratelimit_headers(outcome: Reservation | LimitExceeded) -> dict[str, str]:
    """OpenAI's `x-ratelimit-*` headers, and what tells a refused client when to come back, if ever.

    `retry-after` has whole seconds, at least 1; the SDKs prefer the exact `retry-after-ms`.
    """
    headers: dict[str, str] = {}
    for name, left in (("requests", outcome.requests_left), ("tokens", outcome.tokens_left)):
        if left is not None:
            headers[f"x-ratelimit-limit-{name}"] = str(left.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(left.remaining)
            headers[f"x-ratelimit-reset-{name}"] = _duration(left.reset)
    if isinstance(outcome, LimitExceeded):
        headers |= _retry(outcome.retry_after)
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

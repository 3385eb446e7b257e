"""Limits of a tenant: one atomic decision before the work, settled on what was really used.

Requests and tokens per minute are GCRA (generic cell rate algorithm) buckets that hold one minute's allowance;
parallel requests are leases that expire, so that a killed gateway leaks nothing. A refusal consumes nothing.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.config import Limits

LEASE_SECONDS = 660.0  # longer than any request may take


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitExceeded(Exception):
    """Nothing was consumed. `retry_after` is in seconds; None when waiting cannot help (more than the whole allowance)."""

    limit: Literal["requests", "tokens", "parallel"]
    retry_after: float | None
    requests_left: Remaining | None = None
    tokens_left: Remaining | None = None


class LimitStoreUnavailable(Exception):
    """The store does not answer."""


class LimitStore(Protocol):
    """`now` is injected by tests; Redis uses its own clock unless a test says otherwise."""

    async def reserve(self, tenant: str, limits: Limits, lease: str, tokens: int) -> Reservation:
        """Take one request, `tokens` tokens and one parallel place, or nothing. Raises LimitExceeded, LimitStoreUnavailable."""
        ...

    async def settle(self, reservation: Reservation, limits: Limits, used: int) -> None:
        """Give back the place and the tokens beyond `used` (or take what is missing). Idempotent per lease."""
        ...

    async def close(self) -> None: ...

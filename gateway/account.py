"""What a tenant has taken of its limits, and the decision over all of them: pure, the stores apply it.

Giving back lowers the debt at once. So over a request's whole life no more is used than burst and rate allow, but the
moment it is settled may see a burst of what it had reserved and did not use.
"""

from dataclasses import dataclass

from gateway import gcra
from gateway.config import Limits
from gateway.limits import LEASE_SECONDS, LimitExceeded, LimitName, Remaining, Reservation

LEASE = round(LEASE_SECONDS * 1000)  # milliseconds
PARALLEL_WAIT = 1_000  # milliseconds; a place is free when a request ends, and nobody knows when that is


@dataclass(frozen=True, slots=True)
class Account:
    """Debts in credits (see `gateway.gcra`) as they stood `at` milliseconds. An unlimited bucket has none."""

    requests: int = 0
    tokens: int = 0
    at: int = 0

    def leaked(self, limits: Limits, now: int) -> "Account":
        """The account at `now`; one from a later clock (before a reboot, or set back) keeps its debts from here on."""
        elapsed = now - self.at
        return Account(
            _leaked(self.requests, limits.requests_per_minute, elapsed),
            _leaked(self.tokens, limits.tokens_per_minute, elapsed),
            now,
        )

    def taken(self, limits: Limits, tokens: int) -> "Account":
        """After one request of `tokens` tokens."""
        requests = 0 if limits.requests_per_minute is None else gcra.moved(self.requests, 1)
        return Account(requests, self._moved(limits, tokens), self.at)

    def settled(self, limits: Limits, reserved: int, used: int) -> "Account":
        return Account(self.requests, self._moved(limits, used - reserved), self.at)

    def _moved(self, limits: Limits, tokens: int) -> int:
        return 0 if limits.tokens_per_minute is None else gcra.moved(self.tokens, tokens)

    def check(self) -> None:
        """Raises AssertionError where a debt is negative."""
        assert self.requests >= 0 and self.tokens >= 0, self


def unlimited(limits: Limits) -> bool:
    """Nothing to count, so that no store has to be asked."""
    return limits == Limits()


def alive(expires: int, now: int) -> bool:
    """Whether a lease counts. One that expires too late was taken on another clock, before a reboot."""
    return now < expires <= now + LEASE + gcra.MINUTE


def obstacles(account: Account, limits: Limits, tokens: int, running: int) -> dict[LimitName, int | None]:
    """The limits that stand against one more request, each with the milliseconds to wait (None: for ever).

    `account` is as of now; `running`: leases that count.
    """
    waits: dict[LimitName, int | None] = {}
    if limits.requests_per_minute is not None:
        waits["requests"] = gcra.wait(account.requests, limits.requests_per_minute, 1)
    if limits.tokens_per_minute is not None:
        waits["tokens"] = gcra.wait(account.tokens, limits.tokens_per_minute, tokens)
    if limits.parallel is not None:
        waits["parallel"] = PARALLEL_WAIT if running >= limits.parallel else 0
    return {name: wait for name, wait in waits.items() if wait != 0}


def granted(account: Account, limits: Limits, tenant: str, lease: str, tokens: int) -> Reservation:
    """`account` is as it stands after the taking."""
    requests_left, tokens_left = _left(account, limits)
    return Reservation(
        tenant=tenant, lease=lease, tokens=tokens, requests_left=requests_left, tokens_left=tokens_left
    )


def refused(account: Account, limits: Limits, standing: dict[LimitName, int | None]) -> LimitExceeded:
    """The refusal names the limit that stands longest."""
    limit = max(standing, key=lambda name: _length(standing[name]))
    wait = standing[limit]
    requests_left, tokens_left = _left(account, limits)
    return LimitExceeded(
        limit=limit,
        retry_after=None if wait is None else wait / 1000,
        requests_left=requests_left,
        tokens_left=tokens_left,
    )


def _length(wait: int | None) -> float:
    return float("inf") if wait is None else wait


def _leaked(debt: int, limit: int | None, elapsed: int) -> int:
    return 0 if limit is None else gcra.leaked(debt, limit, elapsed)


def _left(account: Account, limits: Limits) -> tuple[Remaining | None, Remaining | None]:
    return (
        _remaining(account.requests, limits.requests_per_minute),
        _remaining(account.tokens, limits.tokens_per_minute),
    )


def _remaining(debt: int, limit: int | None) -> Remaining | None:
    if limit is None:
        return None
    return Remaining(limit=limit, remaining=gcra.remaining(debt, limit), reset=gcra.reset(debt, limit) / 1000)

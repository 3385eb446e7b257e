"""Limits counted by one process alone: what a gateway falls back on, and the plainest store to test against."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.account import LEASE, Account, alive, granted, left_of, obstacles, refused, unlimited
from gateway.config import Limits
from gateway.limits import Amount, Left, Reservation


@dataclass(slots=True)
class _Book:
    account: Account = Account()
    leases: dict[str, int] = field(default_factory=dict)  # lease → when it expires, in milliseconds


class MemoryLimits:
    """A `LimitStore` without I/O. Nothing is shared with other processes, nothing outlives this one."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, calendar: Callable[[], float] = time.time
    ) -> None:
        """Both in seconds: `clock` for rates and leases, `calendar` (POSIX time) for days and months."""
        self._clock = clock
        self._calendar = calendar
        self._books: dict[str, _Book] = {}

    async def reserve(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> Reservation:
        if unlimited(limits):
            return granted(Account(), limits, tenant, lease, amount)
        book, now = self._open(tenant, limits)
        standing = obstacles(book.account, limits, amount, len(book.leases))
        if standing:
            raise refused(book.account, limits, standing)
        book.account = book.account.taken(limits, amount)
        book.leases[lease] = now + LEASE
        return granted(book.account, limits, tenant, lease, amount)

    async def settle(self, reservation: Reservation, limits: Limits, used: Amount | None) -> None:
        if unlimited(limits):
            return
        book, _ = self._open(reservation.tenant, limits)
        if book.leases.pop(reservation.lease, None) is not None:
            book.account = book.account.settled(limits, reservation, used)

    async def look(self, tenant: str, limits: Limits) -> Left:
        return left_of(self._open(tenant, limits)[0].account, limits)

    async def close(self) -> None:
        """Nothing is held open."""

    def check(self) -> None:
        """Raises AssertionError where a debt is negative or a lease has expired."""
        for book in self._books.values():
            book.account.check()
            assert all(alive(expires, book.account.at) for expires in book.leases.values()), book.leases

    def _open(self, tenant: str, limits: Limits) -> tuple[_Book, int]:
        """The tenant's book as of now, without leases that have expired."""
        now = round(self._clock() * 1000)
        book = self._books.setdefault(tenant, _Book())
        book.account = book.account.opened(limits, now, round(self._calendar() * 1000))
        book.leases = {lease: expires for lease, expires in book.leases.items() if alive(expires, now)}
        return book, now

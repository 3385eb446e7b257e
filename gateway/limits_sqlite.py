"""Limits in a SQLite file: exact across the processes of one host.

After a power cut it may be behind by the last moments, never damaged: budgets are worth as much.
"""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gateway.account import LEASE, Account, granted, left_of, obstacles, refused
from gateway.config import Limits
from gateway.gcra import MINUTE
from gateway.limits import Amount, Left, LimitExceeded, LimitStoreUnavailable, Reservation
from sessions.database import Database

VERSION_2 = """
CREATE TABLE account (
    tenant TEXT PRIMARY KEY,
    requests INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    at INTEGER NOT NULL,
    spent_in_day INTEGER NOT NULL,
    spent_in_month INTEGER NOT NULL,
    day INTEGER NOT NULL,
    month INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE lease (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    expires INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID
"""
# By default a lease has expired, so that all are counted anew.
TO_VERSION_3 = """
ALTER TABLE account ADD COLUMN running INTEGER NOT NULL DEFAULT 1;
ALTER TABLE account ADD COLUMN earliest INTEGER NOT NULL DEFAULT 0
"""


class _Leases(NamedTuple):
    """How many of a tenant's are there, and a time before which none of them expires."""

    running: int = 0
    earliest: int = 0

    def one_more(self, expires: int) -> "_Leases":
        return _Leases(self.running + 1, min(self.earliest, expires) if self.running else expires)

    def one_less(self) -> "_Leases":
        return _Leases(self.running - 1, self.earliest)


class SqliteLimits:
    """A `LimitStore`. The clock must be one for all processes of the host, as the monotonic one is."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        calendar: Callable[[], float] = time.time,
    ) -> None:
        """Both in seconds: `clock` for rates and leases, `calendar` (POSIX time) for days and months."""
        self._database = Database(
            path,
            f"{VERSION_2};{TO_VERSION_3}",
            version=3,
            synchronous="NORMAL",
            unavailable=LimitStoreUnavailable,
            prompt=True,
            # the first version held a minute's counts
            upgrades={1: f"DROP TABLE account; DROP TABLE lease; {VERSION_2}", 2: TO_VERSION_3},
        )
        self._clock = clock
        self._calendar = calendar

    async def reserve(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> Reservation:
        def take(connection: sqlite3.Connection) -> Reservation | LimitExceeded:
            account, leases = self._open(connection, tenant, limits)
            standing = obstacles(account, limits, amount, leases.running)
            if standing:
                # time passes for who is refused, whatever the clock does
                _store(connection, tenant, account, leases)
                return refused(account, limits, standing)
            account, expires = account.taken(limits, amount), account.at + LEASE
            _store(connection, tenant, account, leases.one_more(expires))
            connection.execute("INSERT INTO lease VALUES (?, ?, ?)", (tenant, lease, expires))
            return granted(account, limits, tenant, lease, amount)

        outcome = await self._database.write(take)
        if isinstance(outcome, LimitExceeded):
            raise outcome
        return outcome

    async def settle(self, reservation: Reservation, limits: Limits, used: Amount | None) -> None:
        def give_back(connection: sqlite3.Connection) -> None:
            tenant = reservation.tenant
            account, leases = self._open(connection, tenant, limits)
            held = (tenant, reservation.lease)
            if connection.execute("DELETE FROM lease WHERE tenant = ? AND id = ?", held).rowcount:
                account, leases = account.settled(limits, reservation, used), leases.one_less()
            _store(connection, tenant, account, leases)

        await self._database.write(give_back)

    async def look(self, tenant: str, limits: Limits) -> Left:
        def read(connection: sqlite3.Connection) -> Left:
            account, _ = _load(connection, tenant)
            return left_of(self._as_of_now(account, limits), limits)

        return await self._database.read(read)

    async def close(self) -> None:
        await self._database.close()

    def _open(self, connection: sqlite3.Connection, tenant: str, limits: Limits) -> tuple[Account, _Leases]:
        """The tenant's account as of now, and its leases without those that have expired.

        They are only looked through when one of them can have: that takes long where thousands run.
        """
        now = round(self._clock() * 1000)
        account, leases = _load(connection, tenant)
        if (leases.running and leases.earliest <= now) or account.at > now:
            leases = _alive(connection, tenant, now)
        return self._as_of_now(account, limits), leases

    def _as_of_now(self, account: Account, limits: Limits) -> Account:
        return account.opened(limits, round(self._clock() * 1000), round(self._calendar() * 1000))


def _alive(connection: sqlite3.Connection, tenant: str, now: int) -> _Leases:
    """Forgets leases that do not count (see `gateway.account.alive`)."""
    connection.execute(
        "DELETE FROM lease WHERE tenant = ? AND (expires <= ? OR expires > ?)",
        (tenant, now, now + LEASE + MINUTE),
    )
    running, earliest = connection.execute(
        "SELECT count(*), min(expires) FROM lease WHERE tenant = ?", (tenant,)
    ).fetchone()
    return _Leases(running, earliest or 0)


def _load(connection: sqlite3.Connection, tenant: str) -> tuple[Account, _Leases]:
    row = connection.execute("SELECT * FROM account WHERE tenant = ?", (tenant,)).fetchone()
    if row is None:
        return Account(), _Leases()
    _, *debts, at, in_day, in_month, day, month, running, earliest = row
    return Account(tuple(debts), at, (in_day, in_month), (day, month)), _Leases(running, earliest)


def _store(connection: sqlite3.Connection, tenant: str, account: Account, leases: _Leases) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO account VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (tenant, *account.debts, account.at, *account.spent, *account.periods, *leases),
    )

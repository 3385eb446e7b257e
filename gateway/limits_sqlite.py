"""Limits in a SQLite file: exact across the processes of one host.

After a power cut it may be behind by the last moments, never damaged: budgets are worth as much.
"""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from gateway.account import LEASE, Account, granted, obstacles, refused
from gateway.config import Limits
from gateway.gcra import MINUTE
from gateway.limits import Amount, LimitExceeded, LimitStoreUnavailable, Reservation
from sessions.database import Database

SCHEMA = """
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
            SCHEMA,
            version=2,
            synchronous="NORMAL",
            unavailable=LimitStoreUnavailable,
            prompt=True,
            # the first version held a minute's counts
            upgrades={1: f"DROP TABLE account; DROP TABLE lease; {SCHEMA}"},
        )
        self._clock = clock
        self._calendar = calendar

    async def reserve(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> Reservation:
        def take(connection: sqlite3.Connection) -> Reservation | LimitExceeded:
            account = self._open(connection, tenant, limits)
            standing = obstacles(account, limits, amount, _running(connection, tenant))
            if standing:
                _store(connection, tenant, account)  # time passes for who is refused, whatever the clock does
                return refused(account, limits, standing)
            account = account.taken(limits, amount)
            _store(connection, tenant, account)
            connection.execute("INSERT INTO lease VALUES (?, ?, ?)", (tenant, lease, account.at + LEASE))
            return granted(account, limits, tenant, lease, amount)

        outcome = await self._database.write(take)
        if isinstance(outcome, LimitExceeded):
            raise outcome
        return outcome

    async def settle(self, reservation: Reservation, limits: Limits, used: Amount) -> None:
        def give_back(connection: sqlite3.Connection) -> None:
            account = self._open(connection, reservation.tenant, limits)
            held = (reservation.tenant, reservation.lease)
            if connection.execute("DELETE FROM lease WHERE tenant = ? AND id = ?", held).rowcount:
                _store(connection, reservation.tenant, account.settled(limits, reservation, used))

        await self._database.write(give_back)

    async def close(self) -> None:
        await self._database.close()

    def _open(self, connection: sqlite3.Connection, tenant: str, limits: Limits) -> Account:
        """The tenant's account as of now, without leases that have expired (see `gateway.account.alive`)."""
        now = round(self._clock() * 1000)
        connection.execute(
            "DELETE FROM lease WHERE tenant = ? AND (expires <= ? OR expires > ?)",
            (tenant, now, now + LEASE + MINUTE),
        )
        account = _load(connection, tenant)
        return account.opened(limits, now, round(self._calendar() * 1000))


def _running(connection: sqlite3.Connection, tenant: str) -> int:
    (count,) = connection.execute("SELECT count(*) FROM lease WHERE tenant = ?", (tenant,)).fetchone()
    return int(count)


def _load(connection: sqlite3.Connection, tenant: str) -> Account:
    row = connection.execute("SELECT * FROM account WHERE tenant = ?", (tenant,)).fetchone()
    if row is None:
        return Account()
    _, *debts, at, in_day, in_month, day, month = row
    return Account(tuple(debts), at, (in_day, in_month), (day, month))


def _store(connection: sqlite3.Connection, tenant: str, account: Account) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO account VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (tenant, *account.debts, account.at, *account.spent, *account.periods),
    )

"""What a store behind a thread or a socket needs around it: a guard, and nothing left half done.

A caller who was cancelled, or told that the store does not answer, may have taken something all the same. That is
given back here; otherwise it would keep a parallel place until its lease expires. Giving back what was never taken
changes nothing, so nobody has to find out.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from gateway.account import Account, granted, unlimited
from gateway.config import Limits
from gateway.guard import Guard
from gateway.limits import (
    Amount,
    Left,
    LimitExceeded,
    LimitStore,
    LimitStoreUnavailable,
    Reservation,
    Unsure,
)
from gateway.periods import periods

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_OWED = 10_000
REPAID_AT_ONCE = 8


class _Resting(LimitStoreUnavailable):
    """The store was not even asked."""


class GuardedLimits:
    """A `LimitStore` that asks `store` while it answers, and settles later what it could not settle at once."""

    def __init__(self, store: LimitStore, guard: Guard | None = None) -> None:
        """`guard`: of the server that the store is in; by default it is alone there."""
        self._store = store
        self._guard = guard or Guard()
        self._owed: dict[str, tuple[Reservation, Limits, Amount | None]] = {}  # by lease, the oldest first
        self._repaying: set[asyncio.Task[None]] = set()
        self._closing = False
        self._settling: dict[str, set[asyncio.Future[None]]] = defaultdict(set)  # by tenant

    async def reserve(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> Reservation:
        if unlimited(limits):
            return granted(Account(), limits, tenant, lease, amount)
        try:
            return await self._reserve(tenant, limits, lease, amount)
        except asyncio.CancelledError:
            self._owe_all(tenant, limits, lease, amount)
            self._repay_soon()
            raise

    async def settle(self, reservation: Reservation, limits: Limits, used: Amount | None) -> None:
        """What fails here is tried again when the store answers, and at once where the caller is cancelled."""
        if unlimited(limits):
            return
        try:
            with self._settles(reservation.tenant):
                await self._ask(self._store.settle(reservation, limits, used))
        except LimitStoreUnavailable:
            self._owe(reservation, limits, used)
            raise
        except asyncio.CancelledError:
            self._owe(reservation, limits, used)
            self._repay_soon()
            raise
        if self._owed:
            await self._repay(REPAID_AT_ONCE)

    async def look(self, tenant: str, limits: Limits) -> Left:
        return {} if unlimited(limits) else await self._ask(self._store.look(tenant, limits))

    def awake(self) -> None:
        """The store answers again: settle what is owed, which keeps places that others wait for."""
        if self._owed and not self._repaying and not self._closing:
            self._repay_soon()

    async def close(self) -> None:
        """Tries once more to settle what is owed."""
        self._closing = True
        while self._repaying:
            await asyncio.gather(*self._repaying)
        await self._repay(len(self._owed))
        await self._store.close()

    async def _reserve(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> Reservation:
        try:
            reservation = await self._once_settled(tenant, limits, lease, amount)
        except LimitExceeded:
            await self._repay(REPAID_AT_ONCE)  # what is owed may be the very thing that stands in the way
            raise
        except _Resting:
            raise
        except LimitStoreUnavailable as error:
            self._owe_all(tenant, limits, lease, amount)
            raise Unsure(str(error), partial(self._keep, lease)) from error
        if self._owed:
            await self._repay(REPAID_AT_ONCE)
        return reservation

    async def _once_settled(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> Reservation:
        """A client has its answer a moment before that is settled, and is not refused because of it."""
        try:
            return await self._ask(self._store.reserve(tenant, limits, lease, amount))
        except LimitExceeded:
            if not (settling := self._settling.get(tenant)):
                raise
            await asyncio.wait(set(settling))
            return await self._ask(self._store.reserve(tenant, limits, lease, amount))

    @contextmanager
    def _settles(self, tenant: str) -> Iterator[None]:
        running = asyncio.get_running_loop().create_future()
        self._settling[tenant].add(running)
        try:
            yield
        finally:
            running.set_result(None)
            self._settling[tenant].discard(running)
            if not self._settling[tenant]:
                del self._settling[tenant]

    async def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        return await self._guard.ask(
            question,
            failures=LimitStoreUnavailable,
            answers=(LimitExceeded,),
            resting=_Resting("the store is left in peace after several failures"),
            hurried=True,  # every request waits for its reservation
        )

    def _owe_all(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> None:
        """Of a reservation that may have been taken, and under which nothing will run, all."""
        account = Account(periods=periods(round(time.time() * 1000)))
        self._owe(granted(account, limits, tenant, lease, amount), limits, None)

    def _keep(self, lease: str) -> Reservation | None:
        owed = self._owed.pop(lease, None)
        return None if owed is None else owed[0]

    def _owe(self, reservation: Reservation, limits: Limits, used: Amount | None) -> None:
        if len(self._owed) >= MAX_OWED:
            forgotten = next(iter(self._owed))
            del self._owed[forgotten]
            logger.warning("limits: too much is owed to the store; lease %s will expire instead", forgotten)
        self._owed[reservation.lease] = (reservation, limits, used)

    def _repay_soon(self) -> None:
        """Without whoever was cancelled."""
        repaying = asyncio.create_task(self._repay(len(self._owed)))
        self._repaying.add(repaying)
        repaying.add_done_callback(self._repaying.discard)

    async def _repay(self, most: int) -> None:
        for lease in list(islice(self._owed, most)):
            owed = self._owed.pop(lease, None)
            if owed is None:
                continue  # another request repays it, or has
            try:
                await self._ask(self._store.settle(*owed))
            except LimitStoreUnavailable:
                self._owed.setdefault(lease, owed)
                return
            except asyncio.CancelledError:
                self._owed.setdefault(lease, owed)
                raise

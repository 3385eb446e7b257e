"""What surrounds a store that does not answer, or whose caller goes away."""

import asyncio
from contextlib import suppress

import pytest

from backends.breaker import Breaker
from gateway.config import Limits
from gateway.guard import Guard
from gateway.limits import NOTHING, Amount, LimitExceeded, LimitStoreUnavailable, Reservation
from gateway.limits_guard import MAX_OWED, GuardedLimits
from gateway.limits_memory import MemoryLimits

ONE = Limits(parallel=1)
SEVERAL = Limits(requests_per_minute=2, tokens_per_minute=100, parallel=1)


class Unsteady(MemoryLimits):
    """Can be told not to answer, before or after it did what was asked, and to take its time."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0, lambda: 0.0)
        self.down = self.answers_late = False
        self.open = asyncio.Event()  # while it is not, nobody is answered
        self.open.set()
        self.pause = 0.0
        self.asked = 0

    async def reserve(self, tenant: str, limits: Limits, lease: str, amount: Amount) -> Reservation:
        await self._answer()
        reservation = await super().reserve(tenant, limits, lease, amount)
        if self.answers_late:
            raise LimitStoreUnavailable("late")
        return reservation

    async def settle(self, reservation: Reservation, limits: Limits, used: Amount | None) -> None:
        await self._answer()
        await super().settle(reservation, limits, used)

    async def _answer(self) -> None:
        self.asked += 1
        await self.open.wait()
        await asyncio.sleep(self.pause)
        if self.down:
            raise LimitStoreUnavailable("down")


@pytest.fixture
def store() -> Unsteady:
    return Unsteady()


async def cancelled(guard: GuardedLimits, store: Unsteady, limits: Limits = ONE) -> None:
    """A caller who goes away while the store has not answered yet."""
    asked = store.asked
    store.open.clear()
    caller = asyncio.create_task(guard.reserve("acme", limits, "a", NOTHING))
    while store.asked == asked:
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    store.open.set()


async def test_nobody_is_refused_for_an_answer_that_is_just_being_settled(store: Unsteady) -> None:
    guard = GuardedLimits(store)
    first = await guard.reserve("acme", ONE, "a", NOTHING)
    store.pause = 0.05
    settling = asyncio.create_task(guard.settle(first, ONE, NOTHING))
    await asyncio.sleep(0)
    store.pause = 0.0
    assert (await guard.reserve("acme", ONE, "b", NOTHING)).lease == "b"
    assert settling.done()
    with pytest.raises(LimitExceeded):
        await guard.reserve("acme", ONE, "c", NOTHING)


async def test_a_store_that_keeps_failing_is_not_asked_any_more(store: Unsteady) -> None:
    guard = GuardedLimits(store, Guard(Breaker(failures=3, pause=60.0)))
    store.down = True
    for number in range(10):
        with pytest.raises(LimitStoreUnavailable):
            await guard.reserve("acme", ONE, f"{number}", NOTHING)
    assert store.asked == 3


async def test_refusals_are_answers(store: Unsteady) -> None:
    guard = GuardedLimits(store, Guard(Breaker(failures=1)))
    await guard.reserve("acme", ONE, "a", NOTHING)
    for number in range(5):
        with pytest.raises(LimitExceeded):
            await guard.reserve("acme", ONE, f"{number}", NOTHING)


async def test_a_settlement_that_failed_is_made_up_for(store: Unsteady) -> None:
    guard = GuardedLimits(store, Guard(Breaker(failures=100)))
    held = await guard.reserve("acme", ONE, "a", NOTHING)
    store.down = True
    with pytest.raises(LimitStoreUnavailable):
        await guard.settle(held, ONE, NOTHING)
    store.down = False
    with pytest.raises(LimitExceeded):  # the first to be answered finds the place still taken, and frees it
        await guard.reserve("acme", ONE, "b", NOTHING)
    await guard.reserve("acme", ONE, "c", NOTHING)


async def test_a_settlement_during_a_rest_is_made_up_for_too(store: Unsteady) -> None:
    now = [0.0]
    guard = GuardedLimits(store, Guard(Breaker(failures=1, pause=5.0, clock=lambda: now[0])))
    held = await guard.reserve("acme", ONE, "a", NOTHING)
    store.down = True
    with pytest.raises(LimitStoreUnavailable):
        await guard.reserve("acme", ONE, "b", NOTHING)
    asked = store.asked
    with pytest.raises(LimitStoreUnavailable):
        await guard.settle(held, ONE, NOTHING)
    assert store.asked == asked
    store.down = False
    now[0] = 6.0
    with pytest.raises(LimitExceeded):
        await guard.reserve("acme", ONE, "c", NOTHING)
    await guard.reserve("acme", ONE, "d", NOTHING)


async def test_what_was_taken_without_an_answer_is_given_back(store: Unsteady) -> None:
    guard = GuardedLimits(store)
    store.answers_late = True
    with pytest.raises(LimitStoreUnavailable):
        await guard.reserve("acme", ONE, "a", NOTHING)
    store.answers_late = False
    await guard.reserve("umbrella", ONE, "b", NOTHING)  # any answer will do
    await guard.reserve("acme", ONE, "c", NOTHING)


async def test_what_a_cancelled_caller_took_is_given_back(store: Unsteady) -> None:
    guard = GuardedLimits(store)
    await cancelled(guard, store)
    while True:
        with suppress(LimitExceeded):  # until that is done
            await guard.reserve("acme", ONE, "b", NOTHING)
            break
        await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["no answer", "cancelled"])
async def test_it_is_given_back_whole(store: Unsteady, how: str) -> None:
    """The request too, since it has never run; and nothing more than that."""
    guard = GuardedLimits(store)
    before = await guard.reserve("acme", SEVERAL, "before", Amount(tokens=60))
    await guard.settle(before, SEVERAL, Amount(tokens=50))
    if how == "cancelled":
        await cancelled(guard, store, SEVERAL)
    else:
        store.answers_late = True
        with pytest.raises(LimitStoreUnavailable):
            await guard.reserve("acme", SEVERAL, "a", Amount(tokens=50))
        store.answers_late = False
    await guard.close()
    left = await store.look("acme", SEVERAL)
    assert (left["requests"].remaining, left["tokens"].remaining) == (1, 50)


@pytest.mark.parametrize("down", [True, False])
async def test_a_cancelled_caller_who_got_nothing_owes_nothing(store: Unsteady, down: bool) -> None:
    guard = GuardedLimits(store)
    await guard.reserve("acme", ONE, "held", NOTHING)
    store.down = down
    await cancelled(guard, store)
    for _ in range(5):
        await asyncio.sleep(0)  # it answers
    store.down = False
    await guard.close()
    with pytest.raises(LimitExceeded):
        await store.reserve("acme", ONE, "b", NOTHING)


async def test_closing_settles_what_is_owed(store: Unsteady) -> None:
    guard = GuardedLimits(store)
    held = await guard.reserve("acme", ONE, "a", NOTHING)
    store.down = True
    with pytest.raises(LimitStoreUnavailable):
        await guard.settle(held, ONE, NOTHING)
    store.down = False
    await guard.close()
    await store.reserve("acme", ONE, "b", NOTHING)


async def test_requests_that_repay_at_once_do_not_trip_over_one_another(store: Unsteady) -> None:
    guard = GuardedLimits(store, Guard(Breaker(failures=100)))
    free = Limits(parallel=100)
    held = [await guard.reserve("acme", free, f"{number}", NOTHING) for number in range(20)]
    store.down = True
    failures = await asyncio.gather(
        *(guard.settle(each, free, NOTHING) for each in held), return_exceptions=True
    )
    assert all(isinstance(failure, LimitStoreUnavailable) for failure in failures)
    store.down, store.pause = False, 0.001
    await asyncio.gather(*(guard.reserve("umbrella", free, f"u{number}", NOTHING) for number in range(20)))
    await guard.close()
    store.pause = 0.0
    for number in range(100):
        await store.reserve("acme", free, f"n{number}", NOTHING)  # all places are free again


async def test_closing_does_not_wait_for_a_store_that_is_down(store: Unsteady) -> None:
    guard = GuardedLimits(store, Guard(Breaker(failures=100)))
    store.down = True
    for number in range(5):
        with pytest.raises(LimitStoreUnavailable):
            await guard.reserve("acme", ONE, f"{number}", NOTHING)
    asked = store.asked
    await guard.close()
    assert store.asked == asked + 1


async def test_debts_do_not_grow_without_end(store: Unsteady, caplog: pytest.LogCaptureFixture) -> None:
    guard = GuardedLimits(store, Guard(Breaker(failures=10**9)))
    store.down = True
    for number in range(MAX_OWED + 2):
        with pytest.raises(LimitStoreUnavailable):
            await guard.reserve("acme", ONE, f"lease-{number}", NOTHING)
    assert [record.args for record in caplog.records] == [("lease-0",), ("lease-1",)]


async def test_without_limits_the_store_is_not_even_asked(store: Unsteady) -> None:
    guard = GuardedLimits(store)
    store.down = True
    reservation = await guard.reserve("acme", Limits(), "a", NOTHING)
    await guard.settle(reservation, Limits(), NOTHING)
    assert store.asked == 0

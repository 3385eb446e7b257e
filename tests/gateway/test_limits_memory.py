"""What memory alone promises; the rest is in the conformance suite."""

import pytest

from gateway.config import Limits
from gateway.limits import NOTHING, LimitExceeded
from gateway.limits_memory import MemoryLimits

ONE = Limits(parallel=1, requests_per_minute=100)


async def test_two_stores_count_apart() -> None:
    for store in (MemoryLimits(), MemoryLimits()):
        await store.reserve("acme", ONE, "a", NOTHING)
        with pytest.raises(LimitExceeded):
            await store.reserve("acme", ONE, "b", NOTHING)
        store.check()


async def test_its_own_clock_goes_forward() -> None:
    store, quick = MemoryLimits(), Limits(requests_per_minute=60_000)
    for number in range(60_000):
        await store.reserve("acme", quick, f"{number}", NOTHING)
        if number > 1000:  # enough milliseconds have gone by for some to come back
            break
    reservation = await store.reserve("acme", quick, "last", NOTHING)
    assert reservation.left["requests"].remaining > 60_000 - 1003

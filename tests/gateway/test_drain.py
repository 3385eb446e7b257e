"""Leaving in good order."""

import asyncio

import pytest

from gateway.drain import Drain
from gateway.errors import ApiError
from gateway.watching import watched


async def test_an_idle_gateway_leaves_at_once() -> None:
    drain = Drain()
    async with asyncio.timeout(60):
        await drain.leave(patience=3600.0)
    assert drain.leaving


async def test_nothing_new_is_taken() -> None:
    drain = Drain()
    await drain.leave(patience=0.0)
    with pytest.raises(ApiError) as refused, drain.taken():
        pass
    assert (refused.value.status, refused.value.code) == (503, "draining")
    assert refused.value.headers == {"retry-after": "1"}
    assert drain.running == 0


async def test_it_waits_for_the_last_one() -> None:
    drain = Drain()
    with drain.taken():
        with drain.taken():
            leaving = asyncio.ensure_future(drain.leave(patience=3600.0))
            await asyncio.sleep(0.01)
        assert drain.running == 1 and not leaving.done()
    async with asyncio.timeout(60):
        await leaving


async def test_what_runs_too_long_is_cut() -> None:
    drain = Drain()

    async def endless() -> None:
        with drain.taken():
            await watched(asyncio.sleep(3600), drain.cut)

    running = asyncio.ensure_future(endless())
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await drain.leave(patience=0.05)
    with pytest.raises(ApiError) as cut:
        await running
    assert cut.value.code == "draining"
    with pytest.raises(ApiError):  # so is what only now gets to its work
        await watched(asyncio.sleep(3600), drain.cut)


async def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.drain.CUT_GRACE", 0.05)
    drain = Drain()
    with drain.taken():
        async with asyncio.timeout(60):
            await drain.leave(patience=0.05)
    assert drain.running == 0

"""What opens the breaker of a server, what does not, and how it comes back; over a real socket."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import backends.remote
from backends.backend import DeadlineExceeded
from backends.breaker import FAILURES, PAUSE, Breaker

Make = Callable[..., Any]


async def test_the_breaker_opens_and_half_opens(stub: Any, wire: Any, remote: Make, generation: Make) -> None:
    clock = [0.0]
    stub.plays(*[wire.status(500)] * FAILURES, wire.says(wire.chat("Hi")))
    async with remote(stub.url, Breaker(clock=lambda: clock[0])) as backend:
        for _ in range(FAILURES):
            assert backend.available
            await backend.broken(generation())
        assert not backend.available
        _, error = await backend.broken(generation())
        assert error.code == "upstream_unreachable" and len(stub.heard) == FAILURES
        clock[0] = PAUSE
        assert backend.available
        assert (await backend.collect(generation()))[-1].finish == "stop"
        assert backend.available


async def test_a_trial_whose_client_goes_away_is_followed_by_another(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    clock = [0.0]
    stub.plays(*[wire.status(500)] * FAILURES, wire.says(end=False))
    async with remote(stub.url, Breaker(clock=lambda: clock[0])) as backend:
        for _ in range(FAILURES):
            await backend.broken(generation())
        clock[0] = PAUSE
        trial = asyncio.create_task(backend.collect(generation()))
        while len(stub.heard) == FAILURES:
            await asyncio.sleep(0.01)
        assert not backend.available
        trial.cancel()
        await asyncio.gather(trial, return_exceptions=True)
        assert backend.available


async def test_answers_in_between_keep_the_breaker_closed(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    bad, good = wire.status(500), wire.says(wire.chat("Hi"))
    stub.plays(*[bad, bad, good] * FAILURES)
    async with remote(stub.url) as backend:
        for _ in range(FAILURES):
            await backend.broken(generation())
            await backend.broken(generation())
            await backend.collect(generation())
        assert backend.available


async def test_refusals_never_open_the_breaker(stub: Any, wire: Any, remote: Make, generation: Make) -> None:
    """Over-long prompts must not take a server away from everybody else."""
    stub.plays(*[wire.status(status) for status in (400, 401, 404, 422, 429, 503)] * FAILURES)
    async with remote(stub.url) as backend:
        for _ in range(6 * FAILURES):
            await backend.broken(generation())
        assert backend.available


async def test_a_server_that_never_answers_in_time_opens_the_breaker(
    stub: Any, wire: Any, remote: Make, generation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends.remote, "SILENCE", 0.04)
    stub.plays(wire.says(end=False))
    async with remote(stub.url) as backend:
        for _ in range(FAILURES):
            await backend.broken(generation(timeout=0.05))
        assert not backend.available


async def test_clients_in_a_hurry_take_no_server_away_from_the_others(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    """Five of them used to be enough."""
    stub.plays(wire.says(end=False))
    async with remote(stub.url) as backend:
        for _ in range(3 * FAILURES):
            _, error = await backend.broken(generation(timeout=0.002))
            assert isinstance(error, DeadlineExceeded)
        assert backend.available


async def test_a_trial_in_a_hurry_is_followed_by_another(
    stub: Any, wire: Any, remote: Make, generation: Make
) -> None:
    clock = [0.0]
    stub.plays(*[wire.status(500)] * FAILURES, wire.says(end=False), wire.says(wire.chat("Hi")))
    async with remote(stub.url, Breaker(clock=lambda: clock[0])) as backend:
        for _ in range(FAILURES):
            await backend.broken(generation())
        clock[0] = PAUSE
        await backend.broken(generation(timeout=0.05))
        assert backend.available and backend.tripped
        await backend.collect(generation())
        assert not backend.tripped


async def test_a_server_that_thinks_aloud_is_not_silent(
    stub: Any, wire: Any, remote: Make, generation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends.remote, "SILENCE", 0.01)
    thought = b'data: {"choices": [{"index": 0, "delta": {"reasoning_content": "Hm"}}]}\n\n'
    stub.plays(wire.says(thought, end=False))
    async with remote(stub.url) as backend:
        for _ in range(FAILURES):
            await backend.broken(generation(timeout=0.2))
        assert backend.available

"""Failover before the first delta, and nothing of the kind after it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from backends.backend import (
    BackendError,
    DeadlineExceeded,
    Delta,
    Generation,
    Overloaded,
    Rejected,
    Sampling,
    Unavailable,
)
from backends.prompt import Prompt
from gateway import cascade
from gateway.attempt_span import Unfollowed
from gateway.cascade import Plan
from gateway.cascade_metrics import CascadeMetrics
from gateway.config import Telemetry
from gateway.ledger import Entry, Ledger
from gateway.request import Route
from gateway.spans import NO_SPAN
from gateway.telemetry import Traces
from gateway.tiers import Replica, Tier

Make = Callable[..., Any]


def route(*order: str) -> Route:
    return Route(order=order, reason="because", assessment=None)


def start(tier: Tier, replica: Replica, entry: Entry, watched: bool) -> AsyncGenerator[Delta, None]:
    prompt = Prompt(text="x")
    return replica.backend.stream(Generation(id="1", prompt=prompt, ids=[1], sampling=Sampling(max_tokens=5)))


async def run(
    route: Route, tiers: Mapping[str, Tier], cached: Mapping[str, int] | None = None
) -> cascade.Attempt:
    plan = Plan(route=route, cached=cached or {}, start=start)
    metrics = CascadeMetrics(CollectorRegistry(), [*tiers])
    return await cascade.run(plan, tiers, Ledger(), metrics, Traces(Telemetry()))


async def rest_of(attempt: cascade.Attempt) -> str:
    told = "".join(delta.text for delta in attempt.held)
    return told + "".join([delta.text async for delta in attempt.rest])


async def test_the_first_replica_answers(backend: Make, tier_of: Make) -> None:
    one = backend("7b/0")
    attempt = await run(route("7b"), {"7b": tier_of("7b", one)})
    assert await rest_of(attempt) == "Hello world"
    assert (attempt.tier.name, attempt.replica.name) == ("7b", "7b/0")
    assert one.closed == one.opened == 1


@pytest.mark.parametrize("failure", [Unavailable("gone"), Overloaded("full")])
async def test_a_failure_before_the_first_delta_goes_to_another_replica_then_another_tier(
    failure: BackendError, backend: Make, tier_of: Make
) -> None:
    dead, dead_too, alive = backend("7b/0", [failure]), backend("7b/1", [failure]), backend("13b/0")
    tiers = {"7b": tier_of("7b", dead, dead_too), "13b": tier_of("13b", alive)}
    attempt = await run(route("7b", "13b"), tiers)
    assert await rest_of(attempt) == "Hello world"
    assert attempt.tier.name == "13b"
    assert [b.opened for b in (dead, dead_too, alive)] == [1, 1, 1]
    assert [b.closed for b in (dead, dead_too, alive)] == [1, 1, 1]


async def test_the_cached_replica_that_died_is_not_chosen_again(backend: Make, tier_of: Make) -> None:
    hot, cold = backend("7b/0", [Unavailable("gone")]), backend("7b/1")
    attempt = await run(route("7b"), {"7b": tier_of("7b", hot, cold)}, {"7b/0": 512})
    assert attempt.replica.name == "7b/1"
    assert hot.opened == 1
    await attempt.rest.aclose()


async def test_attempts_are_bounded(backend: Make, tier_of: Make) -> None:
    dead = [backend(f"7b/{n}", [Unavailable(f"gone {n}")]) for n in range(10)]
    with pytest.raises(Unavailable):
        await run(route("7b"), {"7b": tier_of("7b", *dead)})
    assert sum(b.opened for b in dead) == cascade.MAX_ATTEMPTS


async def test_what_no_replica_could_mend_is_not_tried_again(backend: Make, tier_of: Make) -> None:
    one, two = backend("7b/0", [Rejected("too long")]), backend("7b/1", [Rejected("too long")])
    with pytest.raises(Rejected):
        await run(route("7b"), {"7b": tier_of("7b", one, two)})
    assert one.opened + two.opened == 1


async def test_a_backend_that_ends_without_a_word_counts_as_failed(backend: Make, tier_of: Make) -> None:
    with pytest.raises(Unavailable) as failed:
        await run(route("7b"), {"7b": tier_of("7b", backend("7b/0", []))})
    assert failed.value.code == "upstream_eof"


async def test_nobody_there(backend: Make, tier_of: Make) -> None:
    with pytest.raises(Unavailable, match="no replica answers"):
        await run(route("7b"), {"7b": tier_of("7b", backend("7b/0", available=False))})


async def test_an_error_after_the_first_delta_is_final(backend: Make, tier_of: Make) -> None:
    breaking = backend("7b/0", [Delta(text="Hel", tokens=1), Unavailable("died")])
    spare = backend("7b/1")
    attempt = await run(route("7b"), {"7b": tier_of("7b", breaking, spare)}, {"7b/0": 1})
    with pytest.raises(Unavailable, match="died"):
        await rest_of(attempt)
    assert spare.opened == 0


async def test_a_backend_that_hangs_is_ended_by_the_deadline(backend: Make) -> None:
    closed = asyncio.Event()

    async def hang() -> AsyncGenerator[Delta, None]:
        try:
            yield Delta(text="a", tokens=1)
            await asyncio.sleep(3600)
        finally:
            closed.set()

    class Hanging(Unfollowed):
        def __enter__(self) -> AsyncGenerator[Delta, None]:
            return hang()

    generation = Generation(id="1", prompt=Prompt(text="x"), ids=[1], sampling=Sampling(max_tokens=5))
    deadline = asyncio.get_running_loop().time() - cascade.DEADLINE_GRACE + 0.05
    deltas = cascade.within(Hanging(Replica(backend("7b/0"), "small"), generation, NO_SPAN), deadline)
    assert (await anext(deltas)).text == "a"
    with pytest.raises(DeadlineExceeded):
        await anext(deltas)
    assert closed.is_set()

"""What a request reserves, is refused for, and is settled with."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.backend import BackendError, Delta, Rejected, Unavailable
from gateway.config import Budget, Limits, Price
from gateway.errors import ApiError
from gateway.limits import NOTHING
from tests.gateway.story.in_the_hand import Gateway

Make = Callable[..., Any]


async def test_the_limit_of_requests(gateway: Gateway) -> None:
    limits = Limits(requests_per_minute=2)
    for left in ("1", "0"):
        answer = await gateway.run("Hi", limits=limits, id=f"req_{left}")
        assert answer.headers["x-ratelimit-remaining-requests"] == left
    with pytest.raises(ApiError) as refused:
        await gateway.run("Hi", limits=limits, id="req_3")
    assert refused.value.status == 429
    assert refused.value.code == "rate_limit_exceeded"
    assert 1 <= int(refused.value.headers["retry-after"]) <= 60


async def test_a_store_that_is_down_leaves_a_local_share(gateway: Gateway) -> None:
    gateway.limits.up = False
    limits = Limits(requests_per_minute=1)
    answer = await gateway.run("Hi", limits=limits)
    assert answer.headers["x-headrace-degraded"] == "limits"
    await answer.deltas.aclose()
    with pytest.raises(ApiError):
        await gateway.run("Hi", limits=limits, id="req_2")
    assert len(gateway.fallback.settled) == 1


async def test_money_is_reserved_at_worst_and_settled_at_the_price_of_who_answered(
    tmp_path: Path, backend: Make, tier_of: Make, whole_answer: Make
) -> None:
    cheap = tier_of("7b", backend("7b/0", whole_answer("a", "b", prompt_tokens=5, cached=4)))
    dear = tier_of("13b", backend("13b/0"))
    tiers = [
        replace(cheap, price=Price(input=1, cached=0.1, output=2)),
        replace(dear, price=Price(input=3, output=4)),
    ]
    gateway = Gateway(tmp_path, tiers)
    assert await gateway.say("Hello", max_tokens=7) == "ab"
    assert gateway.limits.money == [
        ("reserved", 1000 * (5 * 3 + 7 * 4)),
        ("settled", 1000 * (1 * 1 + 2 * 2) + 100 * 4),
    ]
    await gateway.sessions.close()


async def test_tiers_where_a_request_could_cost_too_much_are_left_out(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    tiers = [
        replace(tier_of(name, backend(f"{name}/0")), price=Price(output=price))
        for name, price in (("7b", 1.0), ("13b", 10.0))
    ]
    gateway = Gateway(tmp_path, tiers, good=(0.1, 0.9))
    answer = await gateway.run("Hi", max_tokens=10, max_request_price=100e-6)
    await answer.deltas.aclose()
    assert answer.tier == "13b"
    answer = await gateway.run("Hi", max_tokens=11, max_request_price=100e-6, id="req_2")
    await answer.deltas.aclose()
    assert answer.tier == "7b"
    assert gateway.limits.money[-2] == ("reserved", 11_000)
    with pytest.raises(
        ApiError, match=r"could cost 0\.000101; one request of this tenant may cost 0\.0001\."
    ) as told:
        await gateway.run("Hi", max_tokens=101, max_request_price=100e-6, id="req_3")
    assert (told.value.status, told.value.code, told.value.param) == (
        400,
        "request_too_expensive",
        "max_tokens",
    )
    with pytest.raises(ApiError):  # a tier that is named is no way around it
        await gateway.run("Hi", model="big", max_tokens=11, max_request_price=100e-6, id="req_4")
    await gateway.sessions.close()


async def test_a_used_up_budget_is_told_in_the_words_that_sdks_do_not_retry(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    tier = replace(tier_of("7b", backend("7b/0")), price=Price(output=1.0))
    gateway = Gateway(tmp_path, [tier])
    limits = Limits(budget=Budget(per_day=12e-6))
    answer = await gateway.run("Hi", limits=limits, max_tokens=10)
    assert answer.headers["x-ratelimit-remaining-budget-day"] == "0.000002"
    await answer.deltas.aclose()
    assert await gateway.say("Hi", limits=limits, max_tokens=10, id="req_2") == "Hello world"
    with pytest.raises(ApiError) as refused:
        await gateway.run("Hi", limits=limits, max_tokens=10, id="req_3")
    assert (refused.value.status, refused.value.code, refused.value.type) == (
        429,
        "insufficient_quota",
        "insufficient_quota",
    )
    assert refused.value.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.value.headers
    await gateway.sessions.close()


@pytest.mark.parametrize("on_outage", ["open", "closed"])
async def test_a_budget_that_nobody_can_look_up_fails_as_configured(
    gateway: Gateway, on_outage: Literal["open", "closed"]
) -> None:
    gateway.limits.up = False
    limits = Limits(budget=Budget(per_month=1.0, on_outage=on_outage))
    if on_outage == "open":
        assert await gateway.say("Hi", limits=limits) == "Hello world"
    else:
        with pytest.raises(ApiError) as refused:
            await gateway.run("Hi", limits=limits)
        assert (refused.value.status, refused.value.code) == (503, "budget_unknown")


async def test_when_every_attempt_fails_the_reservation_comes_back(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    tiers = [
        tier_of("7b", backend("7b/0", [Unavailable("gone")])),
        tier_of("13b", backend("13b/0", [Rejected("no")])),
    ]
    gateway = Gateway(tmp_path, tiers)
    with pytest.raises(Rejected):
        await gateway.run("Hi")
    assert gateway.limits.settled == [0]


async def test_what_failed_is_a_request_and_what_never_ran_is_none(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    one = backend("7b/0", [Rejected("no")], available=False)
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    limits = Limits(requests_per_minute=1)

    async def fails(id: str) -> None:
        with pytest.raises((ApiError, Rejected)):
            await gateway.run("Hi", limits=limits, id=id)

    async def left() -> float:
        return (await gateway.limits.look("acme", limits))["requests"].remaining

    for number in range(3):
        await fails(f"req_{number}")
        assert await left() == 1
    one.available = True
    await fails("req_3")
    assert await left() == 0
    assert gateway.limits.settled == [None, None, None, 0]


async def test_who_leaves_before_anything_ran_has_made_no_request(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0", available=False, recovering=True))])
    limits = Limits(requests_per_minute=1, parallel=1)
    waiting = asyncio.ensure_future(gateway.run("Hi", limits=limits))
    while not gateway.limits.reserved:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert gateway.limits.settled == [None]
    await gateway.limits.reserve("acme", limits, "next", NOTHING)


async def test_an_answer_that_nobody_reads_is_settled_all_the_same(gateway: Gateway) -> None:
    answer = await gateway.run("Hi")
    await answer.deltas.aclose()
    await answer.deltas.aclose()
    assert gateway.limits.settled == [2 + 1]
    with pytest.raises(StopAsyncIteration):
        await anext(aiter(answer.deltas))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    failing=st.sampled_from([None, Unavailable("gone"), Rejected("no")]),
    pieces=st.integers(0, 4),
    cancelled_after=st.integers(0, 30),
)
async def test_whatever_happens_it_is_settled_once(
    tmp_path: Path, backend: Make, tier_of: Make, whole_answer: Make,
    failing: BackendError | None, pieces: int, cancelled_after: int,
) -> None:  # fmt: skip
    """A cancellation at any moment, a failure at any delta: one settlement, nothing in flight, no place kept."""
    script = [
        *(Delta(text="x", tokens=1) for _ in range(pieces)),
        *([failing] if failing else whole_answer("end")),
    ]
    one = backend("7b/0", script)
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    limits = Limits(parallel=1, tokens_per_minute=1000)
    work = asyncio.ensure_future(gateway.say("Hi", limits=limits))
    for _ in range(cancelled_after):
        await asyncio.sleep(0)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(gateway.limits.settled) == len(gateway.limits.reserved)
    assert one.in_flight == 0
    assert one.opened == one.closed
    await gateway.limits.reserve("acme", limits, "next", NOTHING)  # the place is free
    gateway.limits.check()

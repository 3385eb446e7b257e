"""Attempts that fail, what takes over from them, and the ledger that tells of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.backend import Delta, Unavailable
from gateway.config import Price, Telemetry
from gateway.errors import ApiError
from gateway.ledger import ABORTED, ANSWERED, Ledger, Stage
from gateway.telemetry import Traces
from tests.gateway.story.in_the_hand import Gateway

Make = Callable[..., Any]


async def test_failover_is_said(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    tiers = [tier_of("7b", backend("7b/0", [Unavailable("gone")])), tier_of("13b", backend("13b/0"))]
    answer = await Gateway(tmp_path, tiers).run("Hi")
    assert answer.headers["x-headrace-tier"] == "13b"
    assert answer.headers["x-headrace-reason"].startswith("13b: failover from 7b (7b: p=0.90")


async def test_the_ledger_of_an_answer(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    """Two attempts, and money beside what the largest tier would have cost."""
    seven, thirteen = backend("7b/0", [Unavailable("gone")]), backend("13b/0")
    tiers = [tier_of("7b", seven), tier_of("13b", thirteen, price=Price(input=2.0, output=10.0))]
    tiers.append(tier_of("70b", backend("70b/0"), price=Price(input=20.0, output=100.0)))
    gateway, ledger = Gateway(tmp_path, tiers), Ledger()
    await gateway.say("Hi", ledger=ledger)
    failed, answered = ledger.entries
    assert (failed.tier, failed.replica, failed.outcome) == ("7b", "7b/0", "engine_died")
    assert failed.first is None and failed.ended is not None and failed.cost == 0
    assert (answered.tier, answered.outcome) == ("13b", ANSWERED)
    assert answered.usage is not None and answered.usage.completion_tokens == 2
    assert answered.cost == pytest.approx((5 * 2 + 2 * 10) / 1e6)
    page = gateway.metrics.render().decode()
    assert 'headrace_cost_total{tenant="acme",tier="13b"} 3e-05' in page
    assert 'headrace_cost_largest_tier_total{tenant="acme",tier="13b"} 0.0003' in page


async def test_the_ledger_of_answers_that_did_not_end(
    gateway: Gateway, tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    cut = Ledger()
    answer = await gateway.run("Hi", ledger=cut)
    await answer.deltas.aclose()
    assert [(entry.outcome, entry.usage and entry.usage.completion_tokens) for entry in cut.entries] == [
        (ABORTED, 1)
    ]
    broken = Ledger()
    dying = backend("7b/0", [Delta(text="Hel", tokens=1), Unavailable("died", "upstream_eof")])
    with pytest.raises(Unavailable):
        await Gateway(tmp_path / "other", [tier_of("7b", dying)]).say("Hi", ledger=broken)
    (entry,) = broken.entries
    assert entry.outcome == "upstream_eof"
    assert entry.first is not None and entry.ended is not None and entry.first <= entry.ended
    assert entry.usage is not None and entry.usage.completion_tokens == 1


async def test_no_tier_answers(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0", available=False))])
    with pytest.raises(ApiError) as refused:
        await gateway.run("Hi")
    assert (refused.value.status, refused.value.code) == (503, "no_tier_available")
    assert refused.value.headers["retry-after"]
    assert gateway.limits.settled == [None]


async def test_a_request_waits_for_an_engine_that_is_being_started_again(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    dead = backend("7b/0", available=False, recovering=True)
    gateway = Gateway(tmp_path, [tier_of("7b", dead)])
    waiting = asyncio.ensure_future(gateway.say("Hi", model="7b"))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await dead.start()
    assert await waiting == "Hello world"


async def test_the_wait_for_an_engine_is_a_stage_of_the_request(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    dead = backend("7b/0", available=False, recovering=True)
    gateway, traces = Gateway(tmp_path, [tier_of("7b", dead)]), Traces(Telemetry())
    for waits in (True, False):
        stages: list[Stage] = []
        with traces.request("POST", "/v1/chat/completions", {}, stages):
            asking = asyncio.ensure_future(gateway.say("Hi", model="7b"))
            await asyncio.sleep(0.1)
            await dead.start()
            await asking
        assert (
            any(stage.name == "headrace.wait" and stage.ended - stage.started > 0.05 for stage in stages)
            == waits
        )


async def test_it_does_not_wait_for_ever(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0", available=False, recovering=True))])
    with pytest.raises(ApiError) as refused:
        await gateway.say("Hi", timeout=0.2)
    assert refused.value.status == 503


async def test_steps_in_a_trace_that_nobody_gets_are_refused(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0"))])
    with pytest.raises(ApiError, match="x-headrace-trace: this gateway exports no traces") as refused:
        await gateway.say("Hi", steps=True)
    assert (refused.value.status, gateway.limits.reserved) == (400, [])


async def test_another_tier_spares_the_wait(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    dead = backend("7b/0", available=False, recovering=True)
    gateway = Gateway(tmp_path, [tier_of("7b", dead), tier_of("13b", backend("13b/0"))])
    assert (await gateway.run("Hi")).tier == "13b"

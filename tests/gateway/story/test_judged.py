"""Answers judged while they are held back: kept, escalated, paid for, and never changed after the first byte."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from backends.backend import Delta, Overloaded, Rejected, Unavailable, Usage
from gateway.cascade import Attempt
from gateway.holding import Ahead
from gateway.ledger import ABORTED, ESCALATED, RUNNING, Entry
from gateway.reasons import reason
from gateway.request import Route
from gateway.tiers import Replica, Tier
from tests.gateway.story.judged import LARGE, Make, Rig


async def test_a_sure_answer_is_kept_and_streamed_on(rig: Rig) -> None:
    rig.scripts["7b"] = rig.confident.answer(*[rig.confident.SURE] * 50)
    attempt = await rig.run()
    assert len(attempt.held) == 32 and attempt.tier.name == "7b"
    assert await rig.text(attempt) == "".join(f"s{n} " for n in range(50))
    [verdict] = attempt.verdicts
    assert verdict.kept and verdict.sight.tokens == 32
    assert reason(rig.route, attempt) == "7b: because; its answer p=0.87 >= 0.50 after 32 tokens"
    assert attempt.entry.confidence == pytest.approx(rig.confident.chance(-0.1)) and rig.opened() == [1, 0, 0]
    assert rig.watched == [True] and rig.aside == []
    assert rig.value("headrace_holdback_seconds_count", tier="7b", judged="yes") == 1


async def test_an_unsure_one_is_answered_by_the_next_tier_before_the_first_byte(rig: Rig) -> None:
    rig.scripts["7b"] = rig.confident.answer(*[rig.confident.UNSURE] * 50, cached=3)
    rig.scripts["13b"] = rig.confident.answer(*[rig.confident.SURE] * 40, text="m")
    attempt = await rig.run()
    assert (await rig.text(attempt)).startswith("m0 m1 ") and attempt.tier.name == "13b"
    assert rig.opened() == [1, 1, 0] and rig.idle()
    assert rig.aside == [
        ("7b", ESCALATED, Usage(prompt_tokens=5, completion_tokens=32, cached_tokens=3)),
    ]  # fmt: skip
    assert [entry.outcome for entry in rig.ledger.entries] == [ESCALATED, RUNNING]
    assert rig.value("headrace_escalations_total", from_tier="7b", to_tier="13b") == 1
    assert reason(rig.route, attempt) == (
        "13b: escalated from 7b (p=0.12 < 0.50 after 32 tokens), p=0.87 >= 0.50 after 32 tokens (7b: because)"
    )


async def test_all_the_way_up_where_nobody_judges_any_more(rig: Rig) -> None:
    for name in ("7b", "13b"):
        rig.scripts[name] = rig.confident.answer(*[rig.confident.UNSURE] * 50)
    attempt = await rig.run()
    assert attempt.tier.name == "70b" and await rig.text(attempt) == "L0 L1"
    assert [tier for tier, *_ in rig.aside] == ["7b", "13b"] and rig.watched == [True, True, False]
    assert "escalated from 7b (p=0.12 < 0.50 after 32 tokens), 13b (p=0.12" in reason(rig.route, attempt)


@pytest.mark.parametrize(
    "limit", [{"max_attempts": 2}, {"may": lambda wanting, tier: len(wanting) < 2}], ids=["attempts", "money"]
)
async def test_no_more_often_than_is_allowed(rig: Rig, limit: dict[str, Any]) -> None:
    """Who may not be followed is not judged, so its answer does not wait."""
    for name in ("7b", "13b"):
        rig.scripts[name] = rig.confident.answer(*[rig.confident.UNSURE] * 50)
    attempt = await rig.run(**limit)
    assert attempt.tier.name == "13b" and len(attempt.held) == 1 and rig.watched == [True, False]
    await attempt.rest.aclose()


async def test_a_short_answer_is_judged_at_its_end(rig: Rig) -> None:
    rig.scripts["7b"] = rig.confident.answer(*[rig.confident.SURE] * 9, *[-8.0] * 6)
    attempt = await rig.run()
    assert attempt.tier.name == "13b"
    assert rig.aside[0][2].completion_tokens == 15  # as it reported


async def test_whole_answers(rig: Rig) -> None:
    """What looked good after 32 tokens may end badly."""
    rig.scripts["7b"] = rig.confident.answer(*[rig.confident.SURE] * 32, *[-8.0] * 60)
    attempt = await rig.run(when="end")
    assert attempt.tier.name == "13b" and attempt.verdicts[0].sight.tokens == 92
    rig.scripts["7b"] = rig.confident.answer(*[rig.confident.SURE] * 40)
    kept = await rig.run(when="end")
    assert kept.tier.name == "7b" and len(kept.held) == 40 and await rig.text(kept)


async def test_a_whole_answer_serves_where_no_dearer_tier_answers(rig: Rig) -> None:
    rig.scripts |= {
        "7b": rig.confident.answer(*[rig.confident.UNSURE] * 10),
        "13b": [Unavailable("gone")],
        "70b": [Rejected("not here")],
    }
    attempt = await rig.run(when="end")
    assert attempt.tier.name == "7b" and await rig.text(attempt) == "".join(f"s{n} " for n in range(10))
    assert rig.opened() == [1, 1, 1] and rig.aside[-1][0] != "7b"
    assert reason(rig.route, attempt) == (
        "7b: no dearer tier has answered, its own answer p=0.12 < 0.50 after 10 tokens; 7b: because"
    )


async def test_a_held_back_one_is_asked_again_where_no_dearer_tier_answers(rig: Rig) -> None:
    rig.scripts |= {
        "7b": rig.confident.answer(*[rig.confident.UNSURE] * 50),
        "13b": [Unavailable("gone")],
        "70b": [Unavailable("gone")],
    }
    attempt = await rig.run(max_attempts=4)
    assert attempt.tier.name == "7b" and rig.opened() == [2, 1, 1] and rig.watched[-1] is False
    await attempt.rest.aclose()
    with pytest.raises(Unavailable, match="gone"):
        await rig.run(max_attempts=3)
    assert rig.idle()


async def test_where_all_dearer_tiers_are_full_the_first_one_answers_after_all(rig: Rig) -> None:
    """With what is usual, nothing set: an answer that may be wrong is more than none."""
    rig.scripts |= {
        "7b": rig.confident.answer(*[rig.confident.UNSURE] * 50),
        "13b": [Overloaded("full")],
        "70b": [Overloaded("full")],
    }
    attempt = await rig.run()
    assert attempt.tier.name == "7b" and rig.opened() == [2, 1, 1]
    await attempt.rest.aclose()


async def test_whom_nobody_provided_for_is_not_asked_though_the_next_one_fails(rig: Rig) -> None:
    """The two small tiers can be paid, the small one and the large one cannot."""
    rig.scripts |= {"7b": rig.confident.answer(*[rig.confident.UNSURE] * 50), "13b": [Unavailable("gone")]}
    asked: list[tuple[Sequence[str], str]] = []

    def may(wanting: Sequence[str], tier: str) -> bool:
        asked.append((wanting, tier))
        return tier != "70b"

    attempt = await rig.run(may=may)
    assert attempt.tier.name == "7b" and rig.opened() == [2, 1, 0]
    assert (("7b",), "70b") in asked
    await attempt.rest.aclose()


async def test_a_whole_answer_stands_above_one_that_a_cheaper_tier_would_have_to_make(rig: Rig) -> None:
    rig.scripts |= {
        "7b": rig.confident.answer(*[rig.confident.UNSURE] * 50),
        "13b": rig.confident.answer(*[rig.confident.UNSURE] * 10, text="m"),
        "70b": [Unavailable("gone")],
    }
    attempt = await rig.run(max_attempts=4)
    assert attempt.tier.name == "13b" and rig.opened() == [1, 1, 1]
    assert await rig.text(attempt) == "".join(f"m{n} " for n in range(10))


async def test_a_tier_above_that_cannot_take_the_request_does_not_refuse_it(rig: Rig) -> None:
    """What the first one could answer is no mistake of the client's."""
    rig.scripts |= {
        "7b": rig.confident.answer(*[rig.confident.UNSURE] * 50),
        "13b": [Rejected("logprobs: not on this server")],
    }
    attempt = await rig.run()
    assert attempt.tier.name == "70b"
    await attempt.rest.aclose()
    rig.scripts["70b"] = rig.scripts["13b"]
    attempt = await rig.run(max_attempts=4)
    assert attempt.tier.name == "7b"
    await attempt.rest.aclose()


async def test_an_attempt_that_dies_while_it_is_held_back_is_made_elsewhere(rig: Rig) -> None:
    rig.scripts["7b"] = [*rig.confident.answer(*[rig.confident.SURE] * 50)[:10], Unavailable("died")]
    attempt = await rig.run()
    assert attempt.tier.name == "13b" and not any(not verdict.kept for verdict in attempt.verdicts)
    assert rig.aside[0][:2] == ("7b", "engine_died")
    assert "failover from 7b" in reason(rig.route, attempt)
    await attempt.rest.aclose()


async def test_after_commitment_errors_are_final(rig: Rig) -> None:
    rig.scripts["7b"] = [*rig.confident.answer(*[rig.confident.SURE] * 50)[:40], Unavailable("died")]
    attempt = await rig.run()
    with pytest.raises(Unavailable, match="died"):
        await rig.text(attempt)
    assert rig.opened() == [1, 0, 0]


@pytest.mark.parametrize("first", [9, 3])
async def test_a_slow_answer_is_not_held_back_for_ever(rig: Rig, first: int) -> None:
    """What is known by then counts; where nothing is, it is kept."""
    sign = rig.confident.UNSURE

    async def slow() -> AsyncGenerator[Delta, None]:
        for delta in rig.confident.answer(*[sign] * 50)[:first]:
            yield delta
        await asyncio.sleep(3600)

    def start(tier: Tier, replica: Replica, entry: Entry, watched: bool) -> AsyncGenerator[Delta, None]:
        return slow() if tier.name == "7b" else replica.backend.stream(tier.name)  # type: ignore[arg-type]

    attempt = await rig.run(start=start, hold_ms=40.0)
    assert attempt.tier.name == ("13b" if first == 9 else "7b")
    await attempt.rest.aclose()


async def test_waiting_costs_no_delta() -> None:
    """What comes after the time is over is there for whoever goes on."""
    gate = asyncio.Event()

    async def slow() -> AsyncGenerator[Delta, None]:
        yield Delta(text="a")
        await gate.wait()
        yield Delta(text="b")

    ahead = Ahead(slow())
    assert (await anext(ahead)).text == "a"
    assert await ahead.within(0.01) is None and await ahead.within(0.01) is None
    gate.set()
    assert [delta.text async for delta in ahead] == ["b"]
    await ahead.aclose()


async def test_forced_tokens_are_no_evidence(rig: Rig) -> None:
    """Neither for nor against: the same answer without them is judged alike, only later."""
    mixed = [rig.confident.SURE if n % 2 else -30.0 for n in range(20)]
    rig.scripts["7b"] = rig.confident.answer(*mixed, forced=range(0, 20, 2), finish="tool_calls")
    attempt = await rig.run()
    assert attempt.tier.name == "7b" and attempt.verdicts[0].sight.confidence == pytest.approx(
        rig.confident.chance(-0.1)
    )
    await attempt.rest.aclose()


async def test_several_answers_are_judged_by_the_first_at_the_end(rig: Rig) -> None:
    script = rig.confident.answer(*[rig.confident.UNSURE] * 9)
    *body, last = script
    usage, ends = last.usage, Delta(index=0, text=last.text, tokens=1, signals=last.signals, finish="stop")
    rig.scripts["7b"] = [*body, ends, Delta(index=1, text="two", tokens=1, finish="stop", usage=usage)]
    attempt = await rig.run(n=2)
    assert attempt.tier.name == "13b" and attempt.verdicts[0].sight.tokens == 9
    await attempt.rest.aclose()


async def test_signals_that_do_not_come_judge_nothing(rig: Rig) -> None:
    """A remote server may give none."""
    plain = [Delta(text="a", tokens=1)] * 40
    rig.scripts["7b"] = [*plain, *LARGE]
    attempt = await rig.run()
    assert attempt.tier.name == "7b" and attempt.verdicts == () and len(attempt.held) == 32
    assert rig.value("headrace_holdback_seconds_count", tier="7b", judged="no") == 1
    await attempt.rest.aclose()


@pytest.mark.parametrize("later", [-4.0, 3.0])
async def test_the_next_tier_reads_while_confidence_sags(rig: Rig, later: float) -> None:
    """And is told to stop where it recovers; where it is needed, it has read before it answers."""
    rig.scripts["7b"] = rig.confident.answer(*[-3.0] * 8, *[later] * 40)

    async def slowly(tier: Tier, replica: Replica) -> AsyncGenerator[Delta, None]:
        async with aclosing(replica.backend.stream(tier.name)) as deltas:  # type: ignore[arg-type]
            async for delta in deltas:
                await asyncio.sleep(0)
                yield delta

    attempt = await rig.run(start=lambda tier, replica, entry, watched: slowly(tier, replica))
    needed = later < 0
    assert rig.backends["13b"].warmed == ["13b"] and rig.backends["70b"].warmed == []
    assert attempt.tier.name == ("13b" if needed else "7b")
    assert rig.value("headrace_warms_total", tier="13b", used="yes" if needed else "no") == 1
    await attempt.rest.aclose()


async def test_who_cannot_read_ahead_is_not_counted_as_if(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cannot(self: Any, generation: Any) -> bool:
        return False

    rig.scripts["7b"] = rig.confident.answer(*[rig.confident.UNSURE] * 50)

    async def slowly(tier: Tier, replica: Replica) -> AsyncGenerator[Delta, None]:
        monkeypatch.setattr(type(replica.backend), "warm", cannot)
        async with aclosing(replica.backend.stream(tier.name)) as deltas:  # type: ignore[arg-type]
            async for delta in deltas:
                await asyncio.sleep(0)
                yield delta

    attempt = await rig.run(start=lambda tier, replica, entry, watched: slowly(tier, replica))
    assert attempt.tier.name == "13b"
    assert rig.value("headrace_warms_total", tier="13b", used="yes") == 0
    await attempt.rest.aclose()


async def test_nobody_reads_ahead_where_it_is_switched_off(rig: Rig) -> None:
    rig.scripts["7b"] = rig.confident.answer(*[rig.confident.UNSURE] * 50)
    attempt = await rig.run(speculative=False)
    assert attempt.tier.name == "13b" and rig.backends["13b"].warmed == []
    await attempt.rest.aclose()


async def test_whoever_leaves_while_it_is_held_back_leaves_nothing_running(rig: Rig) -> None:
    async def hang(deltas: Sequence[Delta]) -> AsyncGenerator[Delta, None]:
        for delta in deltas:
            yield delta
        await asyncio.sleep(3600)

    script = rig.confident.answer(*[rig.confident.UNSURE] * 50)[:9]
    run = asyncio.create_task(rig.run(start=lambda *_: hang(script), when="end"))
    await asyncio.sleep(0.05)
    rig.backends["13b"].warming = 3600.0
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert [(tier, outcome) for tier, outcome, _ in rig.aside] == [("7b", ABORTED)]
    assert rig.aside[0][2].completion_tokens == 9
    assert rig.value("headrace_warms_total", tier="13b", used="no") == 1


def test_words_of_a_route_without_verdicts(tier_of: Make, backend: Make, tmp_path: Path) -> None:
    tier = tier_of("13b", backend("13b/0"))
    entry = Entry(tier="13b", replica="13b/0")
    attempt = Attempt(tier=tier, replica=tier.replicas[0], entry=entry, held=(), rest=None)  # type: ignore[arg-type]
    route = Route(order=("7b", "13b"), reason="7b: because", assessment=None)
    assert reason(route, attempt) == "13b: failover from 7b (7b: because)"

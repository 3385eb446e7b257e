"""What is remembered of calls and engines: enough to see what happened, never what was said."""

import asyncio
import gc
import time
import weakref
from typing import Any

import msgspec

from backends.backend import Delta, Timings, Usage
from backends.wire import Load
from classifier import Assessment
from gateway.config import Tenant
from gateway.dashboard.watch import KEPT, Watch
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.ledger import Stage
from gateway.request import Answer, Route

USAGE = Usage(prompt_tokens=8, completion_tokens=4, cached_tokens=2)


def exchange(id: str = "r", endpoint: str = "chat", tier: str = "7b") -> Exchange:
    made = Exchange(id=id, endpoint=endpoint, tenant=Tenant(name="acme"), status=200)
    route = Route(order=(tier,), reason=f"{tier}: p=0.90", assessment=Assessment("qa", {tier: 0.9}, 0.0))
    made.answer = Answer(id=id, created=0, tier=tier, route=route, session=None, deltas=None)  # type: ignore[arg-type]
    return made


def load(incarnation: str, generated: int) -> Load:
    fields: dict[str, Any] = dict.fromkeys(Load.__struct_fields__[2:-1], 0)
    return Load(
        **{
            **fields,
            "engine": "7b/0",
            "incarnation": incarnation,
            "generation_tokens": generated,
            "finished": {},
        }
    )


def test_the_course_of_a_request() -> None:
    watch, call = Watch({}), exchange()
    call.started = time.monotonic() - 2.0
    arrived = time.time() - 2.0
    with watch.running(call):
        assert watch.running_by_tenant() == {"acme": 1}
        call.ledger.stages.append(Stage("headrace.route", arrived + 0.25, arrived + 0.5))
        entry = call.ledger.open("7b", "7b/0")
        entry.started = arrived + 0.5
        entry.first = arrived + 1.5
        timings = Timings(
            arrived=arrived + 0.5, scheduled=arrived + 1.0, first_token=arrived + 1.5, finished=arrived + 2
        )
        entry.settled(Delta(usage=USAGE, timings=timings), USAGE, 0.5)
        call.ledger.largest = 2.0
    assert not watch.running_by_tenant()
    record = watch.find("r")
    assert record is not None
    assert [(step.name, step.within, round(step.begin, 2)) for step in record.steps] == [
        ("route", None, 0.25),
        ("7b/0", None, 0.5),
        ("queue", 0, 0.5),
        ("prefill", 0, 1.0),
        ("decode", 0, 1.5),
    ]
    assert (record.tier, record.task, record.good) == ("7b", "qa", {"7b": 0.9})
    assert (record.cost, record.largest, record.completion_tokens) == (0.5, 2.0, 4)
    (attempt,) = record.attempts
    assert (attempt.replica, attempt.outcome, attempt.cached_tokens) == ("7b/0", "answered", 2)


def test_another_server_s_attempt_has_the_stages_that_are_seen_from_here() -> None:
    watch, call = Watch({}), exchange()
    with watch.running(call):
        entry = call.ledger.open("7b", "7b/0")
        entry.begun()
        entry.ends("upstream_eof")
        call.ledger.open("7b", "7b/1")
        call.error = ApiError(502, "the server went away", code="upstream_eof")
    (record,) = watch.latest(9)
    assert record.code == "upstream_eof"
    names = [(step.name, step.within) for step in record.steps]
    assert names == [("7b/0", None), ("first token", 0), ("answer", 0), ("7b/1", None)]


def test_only_calls_for_an_answer_are_kept() -> None:
    watch = Watch({})
    for endpoint in ("models", "route", "probe", "other"):
        with watch.running(exchange(endpoint=endpoint)):
            assert not watch.running_by_tenant()
    assert watch.latest(9) == []


def test_it_keeps_the_last_ones_and_finds_the_newest_of_a_name() -> None:
    watch = Watch({})
    for number in range(KEPT + 5):
        with watch.running(exchange(str(number % 100))):
            pass
    assert [record.id for record in watch.latest(3)] == ["4", "3", "2"]
    assert len(watch.latest(10 * KEPT)) == KEPT
    assert watch.find("nobody's") is None


async def test_a_request_that_is_just_about_to_end_is_waited_for() -> None:
    watch = Watch({})
    with watch.running(exchange("slow")):
        asking = asyncio.create_task(watch.settled("slow", 5.0))
        assert await watch.settled("slow", 0.05) is None
        assert await watch.settled("nobody's", 5.0) is None
    found = await asking
    assert found is not None and found.id == "slow"


def test_a_call_that_raises_is_kept_too() -> None:
    watch = Watch({})
    try:
        with watch.running(exchange()):
            raise ValueError
    except ValueError:
        pass
    assert len(watch.latest(9)) == 1
    assert not watch.running_by_tenant()


def test_an_engine_s_tokens_count_as_they_come_and_another_server_s_at_the_end() -> None:
    watch = Watch({"7b/0": "small"})
    for said in (load("a", 10), load("a", 25), load("b", 5)):
        watch.load(said)
    assert sum(watch.history.series("7b").tokens) * 5 == 30
    for replica in ("7b/0", "7b/1"):
        call = exchange()
        with watch.running(call):
            call.ledger.open("7b", replica).settled(None, USAGE, 0.0)
    assert round(sum(watch.history.series("7b").tokens) * 5) == 30 + 4


def test_a_record_holds_nothing_of_what_was_said() -> None:
    """All its text is words of ours."""
    call = exchange()
    watch = Watch({})
    with watch.running(call):
        call.ledger.open("7b", "7b/0").settled(Delta(text="the canary sings", usage=USAGE), USAGE, 0.0)
    assert b"canary" not in msgspec.json.encode(watch.latest(1))


def test_neither_a_call_nor_its_answer_is_held() -> None:
    """An answer holds its text; a burst of long ones must not stay in memory."""

    class Deltas:
        pass

    watch, call, deltas = Watch({}), exchange(), Deltas()
    assert call.answer is not None
    call.answer.deltas = deltas  # type: ignore[assignment]
    with watch.running(call):
        pass
    held = weakref.ref(deltas)
    del call, deltas
    gc.collect()
    assert held() is None
    assert watch.find("r") is not None

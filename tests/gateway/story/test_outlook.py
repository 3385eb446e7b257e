"""A decision without an answer: the same as a run would make, and nothing is left of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from msgspec import structs

from backends.prompt import ChatMessage, Prompt
from classifier import Assessment
from gateway.config import Limits, Server, Telemetry, Tenant
from gateway.desk import Desk
from gateway.dispatch import Dispatcher
from gateway.errors import ApiError
from gateway.judges import Judges
from gateway.limits import Reservation
from gateway.limits_memory import MemoryLimits
from gateway.metering import Meter
from gateway.metrics import Metrics
from gateway.recall import Memory
from gateway.request import Request
from gateway.telemetry import Traces
from prefixcache.affinity import Affinity, block_keys
from sessions import Turn
from sessions.retention import always
from sessions.sqlite import SqliteSessions

Make = Callable[..., Any]
SALT = b"salt of acme"


class Rig:
    """A dispatcher over two tiers; the small one has a prefix cache of blocks of four tokens."""

    def __init__(self, folder: Path, backend: Make, tier_of: Make) -> None:
        self.backends = [backend("7b/0", context_length=100), backend("13b/0")]
        tiers = [tier_of("7b", self.backends[0], block_size=4), tier_of("13b", self.backends[1])]
        self.metrics = Metrics(["7b", "13b"], {"7b/0": "small", "13b/0": "large"}, ["acme"])
        self.sessions = SqliteSessions(folder / "sessions.sqlite", always(60.0))
        self.affinity = Affinity()
        self.desk = Desk([], {}, {})
        self.dispatcher = Dispatcher(
            tiers=tiers,
            aliases={"small": "7b"},
            server=Server(),
            meter=Meter(MemoryLimits(), MemoryLimits(), self.metrics),
            memory=Memory(self.sessions, self.metrics),
            assess=lambda text: Assessment(task="code", good={"7b": 0.2, "13b": 0.9}, seconds=0.001),
            desk=self.desk,
            affinity=self.affinity,
            salts={"acme": SALT},
            judges=Judges.none(*(tier.name for tier in tiers)),
            metrics=self.metrics,
            traces=Traces(Telemetry()),
        )

    def request(self, said: str, **changes: Any) -> Request:
        # No request may run at all: deciding takes nothing of it.
        tenant = Tenant(name="acme", limits=Limits(tokens_per_minute=1), tiers=changes.pop("tiers", None))
        fields: dict[str, Any] = {
            "id": "r", "endpoint": "chat", "tenant": tenant, "model": "auto", "session": None, "timeout": 1.0,
            "priority": 0, "prompt": Prompt(messages=(ChatMessage("user", said),)),
        }  # fmt: skip
        return Request(**(fields | changes))


@pytest.fixture
def rig(tmp_path: Path, backend: Make, tier_of: Make) -> Rig:
    return Rig(tmp_path, backend, tier_of)


async def test_a_decision_says_what_it_was_made_by(rig: Rig) -> None:
    ids = [ord(character) for character in "Who are you?"]
    rig.affinity.snapshot("7b/0", block_keys(SALT, ids[:8], 4))
    decision = await rig.dispatcher.decide(rig.request("Who are you?"))
    assert decision.route.order == ("13b", "7b")
    assert decision.route.reason.startswith("13b: p=0.90 >= 0.70")
    assert decision.route.assessment is not None and decision.route.assessment.task == "code"
    assert decision.prompt_tokens == {"7b": 12, "13b": 12}
    assert decision.cached_tokens == {"7b": 8, "13b": 0}


async def test_nothing_is_run_counted_or_stored(rig: Rig) -> None:
    session = await rig.sessions.create("acme")
    await rig.sessions.append("acme", session.id, (Turn("user", "One"),), 0)
    for named in ("new", session.id):
        await rig.dispatcher.decide(rig.request("Two", session=named))
    assert await rig.sessions.list("acme") == (session.id,)
    assert (await rig.sessions.get("acme", session.id)).version == 1
    assert [backend.opened for backend in rig.backends] == [0, 0]
    routed = [
        line
        for line in rig.metrics.render().decode().splitlines()
        if "headrace_route_decisions_total{" in line
    ]
    assert routed and all(line.endswith(" 0.0") for line in routed)


async def test_a_named_tier_needs_no_assessment(rig: Rig) -> None:
    decision = await rig.dispatcher.decide(rig.request("Hi", model="small"))
    assert (decision.route.order, decision.route.assessment) == (("7b",), None)
    assert decision.prompt_tokens == {"7b": 2}


async def test_a_prompt_is_assessed_while_the_store_of_the_limits_thinks(rig: Rig) -> None:
    """Whose answer may be some way off."""
    assessed = asyncio.Event()
    assess = rig.dispatcher._scout._assess_text

    def telling(text: str) -> Assessment:
        assessed.set()
        return assess(text)

    class Slow(MemoryLimits):
        async def reserve(self, *asked: Any) -> Reservation:
            async with asyncio.timeout(60):
                await assessed.wait()
            return await super().reserve(*asked)

    rig.dispatcher._meter = Meter(Slow(), MemoryLimits(), rig.metrics)
    with patch.object(rig.dispatcher._scout, "_assess_text", side_effect=telling) as found:
        answer = await rig.dispatcher.run(request_without_limits(rig.request("Hi")))
        assert (answer.tier, found.call_count) == ("13b", 1)
        await answer.deltas.aclose()


async def test_who_is_refused_at_once_is_not_assessed(rig: Rig) -> None:
    with patch.object(rig.dispatcher._scout, "_assess_text") as assess:
        with pytest.raises(ApiError):
            await rig.dispatcher.run(rig.request("Hi"))
        await asyncio.sleep(0.01)
        assert assess.call_count == 0


async def test_a_decision_does_not_move_the_balance_of_a_goal(rig: Rig) -> None:
    request = rig.request("Hi")
    with patch.object(rig.desk, "saw") as saw:
        await rig.dispatcher.decide(request)
        assert saw.call_count == 0
        await (await rig.dispatcher.run(request_without_limits(request))).deltas.aclose()
        assert saw.call_count == 1


def request_without_limits(request: Request) -> Request:
    return structs.replace(request, tenant=Tenant(name="acme"))


@pytest.mark.parametrize(
    ("changes", "status", "code", "param"),
    [
        ({"model": "gpt-5"}, 404, "model_not_found", "model"),
        ({"model": "13b", "tiers": ("7b",)}, 403, "model_not_allowed", "model"),
        ({"max_tokens": 1000}, 400, "context_length_exceeded", "messages"),
        ({"max_tokens": 1000, "prompt_field": "input"}, 400, "context_length_exceeded", "input"),
        ({"max_tokens": 1000, "prompt_field": "prompt[1]"}, 400, "context_length_exceeded", "prompt[1]"),
        ({"session": "sess_unknown"}, 404, "session_not_found", "x-session-id"),
    ],
)
async def test_it_is_refused_as_a_run_would_be(
    rig: Rig, changes: dict[str, Any], status: int, code: str, param: str
) -> None:
    with pytest.raises(ApiError) as refused:
        await rig.dispatcher.decide(rig.request("Hi", **changes))
    assert (refused.value.status, refused.value.code, refused.value.param) == (status, code, param)


async def test_nobody_answers(rig: Rig) -> None:
    for backend in rig.backends:
        backend.available = False
    with pytest.raises(ApiError) as refused:
        await rig.dispatcher.decide(rig.request("Hi"))
    assert (refused.value.status, refused.value.code) == (503, "no_tier_available")


async def test_tokens_are_counted_on_the_tier_that_the_model_means(
    rig: Rig, backend: Make, tier_of: Make
) -> None:
    rig.backends[1].tokenizer = None  # estimated there, three characters to a token
    assert await rig.dispatcher.count(rig.request("x" * 30)) == 30
    assert await rig.dispatcher.count(rig.request("x" * 30, model="13b")) == 30 // 3 + 8
    assert await rig.dispatcher.count(rig.request("x" * 30, tiers=("13b",))) == 30 // 3 + 8
    assert await rig.dispatcher.count(rig.request("x" * 3000)) == 3000  # also what would fit nowhere
    with pytest.raises(ApiError) as refused:
        await rig.dispatcher.count(rig.request("Hi", model="gpt-5"))
    assert refused.value.status == 404

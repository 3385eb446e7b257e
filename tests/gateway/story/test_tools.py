"""Tools in the story of a request: who may be asked, what a session keeps, and which results are answers."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from backends.backend import CallPiece, Delta, Rejected, Usage
from backends.prompt import ChatMessage, Prompt, Tool, ToolCall
from classifier import Assessment
from gateway.config import Server, Telemetry, Tenant
from gateway.desk import Desk
from gateway.dispatch import Dispatcher
from gateway.errors import ApiError
from gateway.judges import Judges
from gateway.limits_memory import MemoryLimits
from gateway.metering import Meter
from gateway.metrics import Metrics
from gateway.recall import Memory
from gateway.request import Answer, Request
from gateway.telemetry import Traces
from prefixcache.affinity import Affinity
from sessions import Call, Turn
from sessions.retention import always
from sessions.sqlite import SqliteSessions

Make = Callable[..., Any]
TOOLS = (Tool("weather", parameters={"type": "object"}),)
ASK = ChatMessage("user", "Is it warm?")
USAGE = Usage(prompt_tokens=5, completion_tokens=3)
CALLING = [
    Delta(text="I look.", tokens=1),
    Delta(calls=(CallPiece(index=0, id="call_1", name="weather"),), tokens=1),
    Delta(calls=(CallPiece(index=0, arguments='{"city": "Paris"}'),), finish="tool_calls", usage=USAGE),
]
CALLED = ChatMessage("assistant", "I look.", tool_calls=(ToolCall("call_1", "weather", '{"city": "Paris"}'),))
RESULT = ChatMessage("tool", "21", tool_call_id="call_1")
STRAY = ChatMessage("tool", "", tool_call_id="call_9")


class Rig:
    """Two tiers; the classifier always wants the small one, which may know no tools."""

    def __init__(self, folder: Path, backend: Make, tier_of: Make) -> None:
        self.small = backend("7b/0", CALLING, takes_tools=False)
        self.large = backend("13b/0", CALLING, [Delta(text="Yes.", finish="stop", usage=USAGE)])
        metrics = Metrics(["7b", "13b"], {"7b/0": "small", "13b/0": "large"}, ["acme"])
        self.sessions = SqliteSessions(folder / "sessions.sqlite", always(60.0))
        self.dispatcher = Dispatcher(
            tiers=[tier_of("7b", self.small), tier_of("13b", self.large)],
            aliases={},
            server=Server(default_max_tokens=50),
            meter=Meter(MemoryLimits(), MemoryLimits(), metrics),
            memory=Memory(self.sessions, metrics),
            assess=lambda text: Assessment(task="qa", good={"7b": 0.9, "13b": 0.9}, seconds=0.001),
            desk=Desk([], {}, {}),
            affinity=Affinity(),
            salts={"acme": b"salt"},
            judges=Judges.none("7b", "13b"),
            metrics=metrics,
            traces=Traces(Telemetry()),
        )

    async def run(self, *messages: ChatMessage, tools: tuple[Tool, ...] = TOOLS, **changes: Any) -> Answer:
        fields: dict[str, Any] = {
            "id": "r", "endpoint": "chat", "tenant": Tenant(name="acme"), "model": "auto", "session": None,
            "timeout": 1.0, "priority": 0, "prompt": Prompt(messages=messages, tools=tools),
            "result_fields": tuple(f"messages[{i}].tool_call_id" for i, m in enumerate(messages) if m.role == "tool"),
        }  # fmt: skip
        return await self.dispatcher.run(Request(**(fields | changes)))

    async def say(self, *messages: ChatMessage, read: int = 99, **changes: Any) -> Answer:
        answer = await self.run(*messages, **changes)
        async with aclosing(answer.deltas):
            while read and await anext(answer.deltas, None) is not None:
                read -= 1
        return answer

    async def turns(self, answer: Answer) -> tuple[Turn, ...]:
        return (await self.sessions.get("acme", str(answer.session))).turns


@pytest.fixture
async def rig(tmp_path: Path, backend: Make, tier_of: Make) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path, backend, tier_of)
    yield rig
    await rig.sessions.close()


async def test_a_tier_that_knows_no_tools_is_left_out(rig: Rig) -> None:
    assert (await rig.say(ASK, tools=())).tier == "7b"
    assert (await rig.say(ASK)).tier == "13b"
    assert (await rig.say(ASK, CALLED, RESULT, tools=())).tier == "13b"
    assert rig.large.seen[0].prompt.tools == TOOLS


async def test_a_tier_whose_server_does_not_honour_a_field_is_left_out(rig: Rig) -> None:
    """Whether a request was served used to hang on where its prompt would go."""
    rig.small.never = Rejected("min_p: not there", "unsupported_parameter")
    answer = await rig.say(ASK, tools=())
    assert (answer.tier, answer.route.order) == ("13b", ("13b",))
    assert rig.small.opened == 0
    with pytest.raises(Rejected, match="min_p: not there"):
        await rig.run(ASK, tools=(), model="7b")
    rig.large.never = Rejected("min_p: nor here", "unsupported_parameter")
    with pytest.raises(Rejected, match="min_p: nor here"):
        await rig.run(ASK, tools=())


async def test_where_nobody_knows_tools_they_are_refused_by_name(rig: Rig) -> None:
    with pytest.raises(ApiError) as refused:
        await rig.run(ASK, model="7b")
    assert (refused.value.status, refused.value.param) == (400, "tools")
    assert "7b" in refused.value.message
    with pytest.raises(ApiError):
        await rig.dispatcher.count(Request(
            id="r", endpoint="chat", tenant=Tenant(name="acme"), model="7b", session=None, timeout=1.0, priority=0,
            prompt=Prompt(messages=(ASK,), tools=TOOLS),
        ))  # fmt: skip


async def test_a_session_keeps_calls_and_results(rig: Rig) -> None:
    opened = await rig.say(ASK, session="new")
    call = Call("call_1", "weather", '{"city": "Paris"}')
    asked, called = await rig.turns(opened)
    assert called == Turn("assistant", "I look.", tier="13b", calls=(call,))
    await rig.say(RESULT, session=opened.session)
    assert (await rig.turns(opened))[2:] == (
        Turn("tool", "21", answers="call_1"),
        Turn("assistant", "Yes.", tier="13b"),
    )
    assert rig.large.seen[-1].prompt == Prompt(messages=(ASK, CALLED, RESULT), tools=TOOLS)


async def test_a_client_may_repeat_the_conversation(rig: Rig) -> None:
    opened = await rig.say(ASK, session="new")
    await rig.say(ASK, CALLED, RESULT, session=opened.session)
    assert rig.large.seen[-1].prompt.messages == (ASK, CALLED, RESULT)


async def test_calls_of_an_answer_that_was_cut_off_are_forgotten(rig: Rig) -> None:
    opened = await rig.say(ASK, session="new", read=2)
    assert (await rig.turns(opened))[-1] == Turn("assistant", "I look.", tier="13b", partial=True)
    with pytest.raises(ApiError, match="call_1"):
        await rig.run(RESULT, session=opened.session)


@pytest.mark.parametrize("session", [None, "new"])
@pytest.mark.parametrize(
    "messages", [(ASK, RESULT), (RESULT,), (ASK, RESULT, CALLED), (ASK, CALLED, RESULT, STRAY)]
)
async def test_a_result_without_a_call_is_named(
    rig: Rig, messages: tuple[ChatMessage, ...], session: str | None
) -> None:
    with pytest.raises(ApiError) as refused:
        await rig.run(*messages, session=session)
    wrong = 3 if len(messages) == 4 else messages.index(RESULT)
    assert (refused.value.status, refused.value.param) == (400, f"messages[{wrong}].tool_call_id")
    assert rig.large.opened == 0

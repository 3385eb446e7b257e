"""Tools as the unmodified `anthropic` client sees them: in one piece, in its streams, and in its tool runner."""

from collections.abc import Iterator, Sequence
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, beta_tool

from backends.backend import CallPiece
from backends.prompt import ChatMessage, ToolCall

ASK: Any = {
    "model": "auto", "max_tokens": 99,
    "messages": [{"role": "user", "content": "What is the weather in Paris and Rome?"}],
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"name": "weather", "description": "Of a city", "input_schema": SCHEMA}]
PIECES = [
    (CallPiece(index=0, id="call_a", name="weather"),),
    (CallPiece(index=0, arguments='{"ci'),),
    (CallPiece(index=0, arguments='ty": "Paris"}'), CallPiece(index=1, id="call_b", name="weather")),
    (CallPiece(index=1, arguments='{"city": "Rome"}'),),
]
CALLS = [("call_a", "weather", {"city": "Paris"}), ("call_b", "weather", {"city": "Rome"})]
CALL_EVENTS = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"]

SHORT_CALL_EVENTS = [CALL_EVENTS[0], *CALL_EVENTS[2:]]


@pytest.fixture
def client(front: Any) -> Iterator[Anthropic]:
    script = front.dispatcher.script
    script.calls, script.finish = PIECES, "tool_calls"
    with Anthropic(base_url=front.url, api_key="any", max_retries=0, timeout=60) as made:
        yield made


def calls_of(message: Any) -> list[tuple[str, str, Any]]:
    return [(block.id, block.name, block.input) for block in message.content if block.type == "tool_use"]


def results(**fields: Any) -> dict[str, Any]:
    blocks = [{"type": "tool_result", "tool_use_id": id, "content": "Sun", **fields} for id, _, _ in CALLS]
    return {"role": "user", "content": blocks}


def test_in_one_piece(client: Anthropic, front: Any) -> None:
    message = client.messages.create(**ASK, tools=TOOLS)
    assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
    assert (calls_of(message), message.stop_reason) == (CALLS, "tool_use")
    (tool,) = front.dispatcher.requests[-1].prompt.tools
    assert (tool.name, tool.parameters, tool.strict) == ("weather", SCHEMA, False)


@pytest.mark.parametrize(
    ("choice", "mode", "name", "parallel"),
    [
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", None, False),
        ({"type": "any"}, "required", None, True),
        ({"type": "tool", "name": "weather"}, "required", "weather", True),
        ({"type": "none"}, "none", None, True),
    ],
)
def test_choices(
    client: Anthropic, front: Any, choice: Any, mode: str, name: str | None, parallel: bool
) -> None:
    client.messages.create(**ASK, tools=TOOLS, tool_choice=choice)
    chosen = front.dispatcher.requests[-1].prompt.tool_choice
    assert (chosen.mode, chosen.name, chosen.parallel) == (mode, name, parallel)


def test_the_events_of_a_stream(client: Anthropic) -> None:
    events: list[Any] = list(client.messages.create(**ASK, tools=TOOLS, stream=True))
    assert [event.type for event in events] == [
        "message_start",
        *CALL_EVENTS,  # of the text, which comes in two pieces
        *CALL_EVENTS,
        *SHORT_CALL_EVENTS,
        "message_delta",
        "message_stop",
    ]
    blocks = [event for event in events if event.type.startswith("content_block")]
    assert [event.index for event in blocks] == [0] * 4 + [1] * 4 + [2] * 3
    starts = [event.content_block for event in blocks if event.type == "content_block_start"]
    assert [(block.id, block.name, block.input) for block in starts[1:]] == [
        ("call_a", "weather", {}), ("call_b", "weather", {}),
    ]  # fmt: skip
    parts = [
        e.delta.partial_json
        for e in blocks
        if getattr(e, "delta", None) and e.delta.type == "input_json_delta"
    ]
    assert parts == ['{"ci', 'ty": "Paris"}', '{"city": "Rome"}']
    assert events[-2].delta.stop_reason == "tool_use"


@pytest.mark.parametrize("texts", [("Hel", "lo"), ()])
def test_its_stream_helper_says_the_same(client: Anthropic, front: Any, texts: Sequence[str]) -> None:
    front.dispatcher.script.texts = texts
    whole = client.messages.create(**ASK, tools=TOOLS)
    with client.messages.stream(**ASK, tools=TOOLS) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert calls_of(final) == CALLS and final.stop_reason == "tool_use"
    assert snapshots[-1] == {"city": "Rome"}


def test_what_it_gave_comes_back_as_it_was(client: Anthropic, front: Any) -> None:
    message = client.messages.create(**ASK, tools=TOOLS)
    turns: Any = [*ASK["messages"], {"role": "assistant", "content": message.content}, results()]
    client.messages.create(**{**ASK, "messages": turns}, tools=TOOLS)
    _, called, *answers = front.dispatcher.requests[-1].prompt.messages
    calls = (
        ToolCall("call_a", "weather", '{"city": "Paris"}'),
        ToolCall("call_b", "weather", '{"city": "Rome"}'),
    )
    assert called == ChatMessage("assistant", "Hello", tool_calls=calls)
    assert answers == [ChatMessage("tool", "Sun", tool_call_id=id) for id in ("call_a", "call_b")]


def test_a_failed_result_is_told_as_one(client: Anthropic, front: Any) -> None:
    uses: Any = [{"type": "tool_use", "id": id, "name": name, "input": given} for id, name, given in CALLS]
    turns: Any = [*ASK["messages"], {"role": "assistant", "content": uses}, results(is_error=True)]
    client.messages.create(**{**ASK, "messages": turns}, tools=TOOLS)
    assert front.dispatcher.requests[-1].prompt.messages[-1].content == "Error: Sun"


def test_tokens_are_counted_with_the_tools(client: Anthropic, front: Any) -> None:
    ask = {name: ASK[name] for name in ("model", "messages")}
    counted = client.messages.count_tokens(**ask, tools=TOOLS, tool_choice={"type": "any"})
    assert counted.input_tokens == 12
    prompt = front.dispatcher.requests[-1].prompt
    assert (prompt.tools[0].name, prompt.tool_choice.mode) == ("weather", "required")


@pytest.mark.parametrize("stream", [True, False])
def test_its_tool_runner(client: Anthropic, front: Any, stream: bool) -> None:
    asked: list[str] = []

    @beta_tool
    def weather(city: str) -> str:
        """Of a city."""
        asked.append(city)
        front.dispatcher.script.calls, front.dispatcher.script.finish = (), "stop"
        if city == "Rome":
            raise ValueError("no such city")
        return "Sun"

    # It asks for a conversation that the server holds, is told that there are none, and goes on without.
    runner: Any = client.beta.messages.tool_runner(**ASK, tools=[weather], stream=stream)
    last = runner.until_done()
    assert sorted(asked) == ["Paris", "Rome"]
    assert last.content[0].text == "Hello" and last.stop_reason == "end_turn"
    (tool,) = front.dispatcher.requests[-1].prompt.tools
    assert (tool.name, tool.description) == ("weather", "Of a city.")
    *_, sunny, failed = front.dispatcher.requests[-1].prompt.messages
    assert sunny == ChatMessage("tool", "Sun", tool_call_id="call_a")
    assert failed.content.startswith("Error: ") and "no such city" in failed.content


def test_a_server_tool_is_a_bad_request_that_names_it(client: Anthropic) -> None:
    search: Any = {"type": "web_search_20250305", "name": "web_search"}
    with pytest.raises(anthropic.BadRequestError, match=r"tools\[1\].type: 'web_search_20250305'"):
        client.messages.create(**ASK, tools=[*TOOLS, search])

"""Tool calls as the unmodified `openai` client reads them, in one piece and in its accumulating streams."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from backends.backend import CallPiece
from backends.prompt import ChatMessage, ToolCall

ASK: Any = [{"role": "user", "content": "What is the weather in Paris and Rome?"}]


class Weather(BaseModel):
    """Of a city."""

    city: str


TOOLS: Any = [openai.pydantic_function_tool(Weather, name="weather")]
PIECES = [
    (CallPiece(index=0, id="call_a", name="weather"),),
    (CallPiece(index=0, arguments='{"ci'),),
    (CallPiece(index=0, arguments='ty": "Paris"}'), CallPiece(index=1, id="call_b", name="weather")),
    (CallPiece(index=1, arguments='{"city": "Rome"}'),),
]
CALLS = [("call_a", "weather", {"city": "Paris"}), ("call_b", "weather", {"city": "Rome"})]


@pytest.fixture
def client(front: Any) -> Iterator[OpenAI]:
    front.dispatcher.script.calls = PIECES
    front.dispatcher.script.finish = "tool_calls"
    with OpenAI(base_url=f"{front.url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


def told(calls: Any) -> list[tuple[str, str, Any]]:
    return [(call.id, call.function.name, json.loads(call.function.arguments)) for call in calls]


def test_in_one_piece(client: OpenAI, front: Any) -> None:
    answer = client.chat.completions.create(model="auto", messages=ASK, tools=TOOLS)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content == "Hello"
    assert told(answer.choices[0].message.tool_calls) == CALLS
    (asked,) = front.dispatcher.requests[-1].prompt.tools
    assert (asked.name, asked.strict) == ("weather", True)


def test_without_text(client: OpenAI, front: Any) -> None:
    front.dispatcher.script.texts = ()
    answer = client.chat.completions.create(model="auto", messages=ASK, tools=TOOLS)
    assert answer.choices[0].message.content is None


@pytest.mark.parametrize("texts", [("Hel", "lo"), ()])
def test_its_stream_helper_accumulates_the_same(client: OpenAI, front: Any, texts: tuple[str, ...]) -> None:
    front.dispatcher.script.texts = texts
    whole = client.chat.completions.create(model="auto", messages=ASK, tools=TOOLS).choices[0]
    with client.chat.completions.stream(model="auto", messages=ASK, tools=TOOLS) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    assert told(final.message.tool_calls) == told(whole.message.tool_calls) == CALLS
    assert (final.message.content, final.finish_reason) == (whole.message.content, whole.finish_reason)
    parsed = [call.function.parsed_arguments for call in final.message.tool_calls or []]
    assert parsed == [Weather(city="Paris"), Weather(city="Rome")]
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.index, json.loads(event.arguments)["city"]) for event in done] == [
        (0, "Paris"),
        (1, "Rome"),
    ]


def test_raw_chunks_have_ids_and_names_once_and_the_right_indices(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="auto", messages=ASK, tools=TOOLS, stream=True))
    items = [item for chunk in chunks for choice in chunk.choices for item in choice.delta.tool_calls or []]
    assert [(item.index, item.id) for item in items] == [
        (0, "call_a"), (0, None), (0, None), (1, "call_b"), (1, None)
    ]  # fmt: skip
    assert [item.function.name for item in items if item.function] == ["weather", None, None, "weather", None]
    assert [item.type for item in items] == ["function", None, None, "function", None]


def test_what_it_gave_comes_back_as_it_was(client: OpenAI, front: Any) -> None:
    answer = client.chat.completions.create(model="auto", messages=ASK, tools=TOOLS)
    results = [{"role": "tool", "tool_call_id": id, "content": "Sun"} for id, _, _ in CALLS]
    messages = [*ASK, answer.choices[0].message, *results]
    client.chat.completions.create(model="auto", messages=messages, tools=TOOLS)
    _, called, first, _ = front.dispatcher.requests[-1].prompt.messages
    assert called.tool_calls[0] == ToolCall("call_a", "weather", '{"city": "Paris"}')
    assert first == ChatMessage("tool", "Sun", tool_call_id="call_a")


def test_a_wrong_tool_is_a_bad_request_that_names_it(client: OpenAI) -> None:
    twice: Any = [*TOOLS, *TOOLS]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="auto", messages=ASK, tools=twice)
    assert refused.value.param == "tools[1].function.name"

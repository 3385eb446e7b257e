"""Tool calls of a real model, through a real gateway, read by the `openai` client."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from openai import OpenAI

pytestmark = pytest.mark.models

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
ADD: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "Forecast", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "add", "description": "Add two numbers", "parameters": ADD}},
]
SUM: Any = [{"role": "user", "content": "What is 12.5 + 30? Use the tool."}]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
SETTINGS: Any = {"model": "13b", "tools": TOOLS, "temperature": 0, "max_tokens": 120, "seed": 1}


@pytest.fixture(scope="module")
def client(serving_tools: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{serving_tools.url}/v1", api_key="any", max_retries=0, timeout=120) as made:
        yield made


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


def test_a_whole_loop(client: OpenAI) -> None:
    """Ask, call, result, answer; what a model this small makes of a result is another matter."""
    asked = client.chat.completions.create(messages=SUM, **SETTINGS).choices[0]
    assert asked.finish_reason == "tool_calls"
    ((name, arguments),) = calls_of(asked.message)
    assert (name, arguments) == ("add", {"a": 12.5, "b": 30})
    (call,) = asked.message.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": "42.5"}
    messages: Any = [*SUM, asked.message, result]
    answer = client.chat.completions.create(messages=messages, **SETTINGS, tool_choice="none").choices[0]
    assert answer.message.content and not answer.message.tool_calls
    assert answer.finish_reason in ("stop", "length")


@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
def test_a_stream_says_the_same(client: OpenAI, choice: Any) -> None:
    whole = client.chat.completions.create(messages=SUM, **SETTINGS, tool_choice=choice).choices[0]
    with client.chat.completions.stream(messages=SUM, **SETTINGS, tool_choice=choice) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert calls_of(streamed.message) == calls_of(whole.message) != []
    assert (streamed.message.content, streamed.finish_reason) == (whole.message.content, "tool_calls")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_arguments_of_a_named_tool_are_valid_whatever_is_asked(client: OpenAI, seed: int) -> None:
    hot: Any = SETTINGS | {"temperature": 1.0, "seed": seed}
    answer = client.chat.completions.create(messages=SUM, **hot, tool_choice=NAMED).choices[0]
    ((name, arguments),) = calls_of(answer.message)
    assert name == "weather" and answer.message.content is None
    jsonschema.validate(arguments, WEATHER)


def test_required_calls_are_of_tools_that_are_there(client: OpenAI) -> None:
    hello: Any = [{"role": "user", "content": "Hello! Who are you?"}]
    several: Any = SETTINGS | {"temperature": 1.0, "n": 2}
    answer = client.chat.completions.create(
        messages=hello, **several, tool_choice="required", parallel_tool_calls=False
    )
    for choice in answer.choices:
        ((name, arguments),) = calls_of(choice.message)
        jsonschema.validate(arguments, {"weather": WEATHER, "add": ADD}[name])
    assert answer.usage is not None and answer.usage.completion_tokens > 2


def test_auto_takes_a_tier_that_knows_tools(client: OpenAI) -> None:
    answer = client.chat.completions.create(messages=SUM, **SETTINGS | {"model": "auto"})
    assert answer.model == "13b"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(messages=SUM, **SETTINGS | {"model": "7b"})
    assert refused.value.param == "tools"


def test_a_session_carries_the_loop(client: OpenAI) -> None:
    opened = client.chat.completions.with_raw_response.create(
        messages=SUM, **SETTINGS, tool_choice="required", extra_headers={"x-session-id": "new"}
    )
    (call, *_) = opened.parse().choices[0].message.tool_calls or []
    session = {"x-session-id": opened.headers["x-session-id"]}
    result: Any = [{"role": "tool", "tool_call_id": call.id, "content": "42.5"}]
    answer = client.chat.completions.create(
        messages=result, **SETTINGS, tool_choice="none", extra_headers=session
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens_details.cached_tokens or 0) > 100  # tools, question and calls


def test_an_impossible_schema_is_refused_by_name(client: OpenAI) -> None:
    never: Any = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "("}},
        "required": ["a"],
    }
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": never}}]
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(messages=SUM, **SETTINGS | {"tools": tools}, tool_choice="required")

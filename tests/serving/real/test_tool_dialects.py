"""Tool calls of a real model in every dialect, by strangers' clients: the same question, the same call."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic import Anthropic, beta_tool
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import OpenAI

pytestmark = pytest.mark.models

QUESTION = "What is 12.5 + 30? Use the tool."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
}
ADD = {"name": "add", "description": "Add two numbers", "parameters": SCHEMA}
CHAT: Any = [{"type": "function", "function": ADD}]
FLAT: Any = [{"type": "function", **ADD}]
CUSTOM: Any = [{"name": "add", "description": "Add two numbers", "input_schema": SCHEMA}]
SAID: Any = [{"role": "user", "content": QUESTION}]
CALL = ("add", {"a": 12.5, "b": 30})
COLD: Any = {"temperature": 0}


@pytest.fixture(scope="module")
def client(serving_tools: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{serving_tools.url}/v1", api_key="any", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def claude(serving_tools: Any) -> Iterator[Anthropic]:
    with Anthropic(base_url=serving_tools.url, api_key="any", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def lang(serving_tools: Any) -> ChatOpenAI:
    address: Any = {"base_url": f"{serving_tools.url}/v1", "api_key": "any"}
    return ChatOpenAI(model="13b", temperature=0, max_retries=0, max_completion_tokens=48, **address)


def test_the_same_call_in_every_dialect(client: OpenAI, claude: Anthropic) -> None:
    chat: Any = client.chat.completions.create(
        model="13b", messages=SAID, tools=CHAT, max_tokens=120, temperature=0
    )
    response: Any = client.responses.create(
        model="13b", input=QUESTION, tools=FLAT, max_output_tokens=120, temperature=0
    )
    message: Any = claude.messages.create(
        model="13b", messages=SAID, tools=CUSTOM, max_tokens=120, extra_body=COLD
    )
    (called,) = chat.choices[0].message.tool_calls
    assert (called.function.name, json.loads(called.function.arguments)) == CALL
    assert [(item.name, item.arguments) for item in response.output] == [("add", called.function.arguments)]
    assert [(block.name, block.input) for block in message.content] == [CALL]
    used = message.usage
    assert used.input_tokens + used.cache_read_input_tokens == chat.usage.prompt_tokens
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.input_tokens_details.cached_tokens >= chat.usage.prompt_tokens // 16 * 16 - 16


def test_counts_and_routes_know_the_tools(client: OpenAI, claude: Anthropic, serving_tools: Any) -> None:
    counted = claude.messages.count_tokens(model="13b", messages=SAID, tools=CUSTOM).input_tokens
    assert (
        client.responses.input_tokens.count(model="13b", input=QUESTION, tools=FLAT).input_tokens == counted
    )
    bodies: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"messages": SAID, "tools": CHAT}, {}),
        ({"input": QUESTION, "tools": FLAT}, {}),
        ({"messages": SAID, "tools": CUSTOM, "max_tokens": 9}, {"anthropic-version": "2023-06-01"}),
    ]
    for body, headers in bodies:
        told = httpx.post(
            f"{serving_tools.url}/v1/route", json={"model": "auto", **body}, headers=headers
        ).json()
        assert (told["tier"], told["prompt_tokens"]) == ("13b", {"13b": counted})
    assert claude.messages.count_tokens(model="13b", messages=SAID).input_tokens < counted


def test_a_result_without_its_call_is_named(client: OpenAI, claude: Anthropic) -> None:
    stray: Any = [{"type": "function_call_output", "call_id": "call_9", "output": "42.5"}]
    told = httpx.post(f"{client.base_url}responses", json={"model": "13b", "input": stray}).json()
    assert told["error"]["param"] == "input[0].call_id"
    block = {"type": "tool_result", "tool_use_id": "call_9", "content": "42.5"}
    said = [{"role": "user", "content": [block]}]
    body = {"model": "13b", "max_tokens": 9, "messages": said}
    told = httpx.post(f"{claude.base_url}/v1/messages", json=body).json()
    assert told["error"]["message"].startswith("messages[0].content[0].tool_use_id: ")


def test_anthropics_tool_runner(claude: Anthropic) -> None:
    sums: list[float] = []

    @beta_tool
    def add(a: float, b: float) -> str:
        """Add two numbers."""
        sums.append(a + b)
        return str(a + b)

    runner = claude.beta.messages.tool_runner(
        model="13b", messages=SAID, tools=[add], max_tokens=120, max_iterations=2, extra_body=COLD
    )
    turns = list(runner)
    assert sums[0] == 42.5 and turns[0].stop_reason == "tool_use"
    assert len(turns) == 2


@tool
def add(a: float, b: float) -> float:
    """Add two numbers"""
    return a + b


def test_a_loop_of_langchain(lang: ChatOpenAI) -> None:
    bound = lang.bind_tools([add])
    said: list[BaseMessage] = [HumanMessage(QUESTION)]
    said.append(answer := bound.invoke(said))
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [CALL]
    said += [add.invoke(call) for call in answer.tool_calls]
    assert isinstance(said[-1], ToolMessage) and said[-1].content == "42.5"
    assert bound.invoke(said, tool_choice="none").text

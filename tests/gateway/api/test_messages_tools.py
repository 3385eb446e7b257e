"""Tools in `/v1/messages`: what a body may say of them, and how calls are told."""

import json
from typing import Any

import pytest

from backends.backend import CallPiece, Delta, Usage
from backends.prompt import ChatMessage, Prompt, Tool, ToolCall, ToolChoice
from gateway.api.dialect import Ending
from gateway.api.messages import MessagesBody, decode, decode_count
from gateway.api.messages_rendering import MessageRendering
from gateway.config import Tenant
from gateway.errors import ApiError
from gateway.request import Answer, Request, Route

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: dict[str, Any] = {"name": "weather", "description": "Of a city", "input_schema": SCHEMA}
NOW: dict[str, Any] = {"name": "now", "input_schema": {"type": "object"}}
ASK: dict[str, Any] = {"role": "user", "content": "What is the weather?"}
USE: dict[str, Any] = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Zürich"}}
CALLED: dict[str, Any] = {"role": "assistant", "content": [{"type": "text", "text": "I look."}, USE]}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "call_1", "content": "Sun"}
DEEP = json.loads('{"a":' * 80 + "1" + "}" * 80)
USAGE = Usage(prompt_tokens=3, completion_tokens=4)


def parse(**fields: Any) -> MessagesBody:
    return decode(json.dumps({"model": "auto", "max_tokens": 9, "messages": [ASK], **fields}).encode())


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        parse(**fields)
    assert error.value.status == 400
    return error.value


def results(*blocks: Any) -> list[dict[str, Any]]:
    return [ASK, CALLED, {"role": "user", "content": list(blocks)}]


def tool(**fields: Any) -> dict[str, Any]:
    return {**NOW, **fields}


class TestBody:
    def test_tools(self) -> None:
        prompt = parse(tools=[WEATHER, tool(strict=True, type="custom")]).to_prompt()
        assert prompt.tools == (
            Tool("weather", "Of a city", SCHEMA),
            Tool("now", None, {"type": "object"}, strict=True),
        )
        assert prompt.tool_choice == ToolChoice("auto")

    @pytest.mark.parametrize(
        ("given", "choice"),
        [
            (None, ToolChoice("auto")),
            ({"type": "auto"}, ToolChoice("auto")),
            ({"type": "none"}, ToolChoice("none")),
            ({"type": "any"}, ToolChoice("required")),
            ({"type": "tool", "name": "now"}, ToolChoice("required", "now")),
            ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice("auto", None, False)),
            ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("required", None, False)),
            (
                {"type": "tool", "name": "now", "disable_parallel_tool_use": True},
                ToolChoice("required", "now", False),
            ),
        ],
    )
    def test_choice(self, given: Any, choice: ToolChoice) -> None:
        assert parse(tools=[WEATHER, NOW], tool_choice=given).to_prompt().tool_choice == choice

    @pytest.mark.parametrize("off", [{}, {"tools": []}, {"tools": None}])
    @pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "none"}])
    def test_without_tools_there_is_nothing_to_choose(self, off: dict[str, Any], choice: Any) -> None:
        assert parse(**off, tool_choice=choice).to_prompt() == parse().to_prompt()

    def test_what_is_a_hint_or_off_may_be_said_of_a_tool(self) -> None:
        hints = tool(
            cache_control={"type": "ephemeral"}, allowed_callers=["direct"], defer_loading=False,
            eager_input_streaming=True, input_examples=[], description=None,
        )  # fmt: skip
        assert parse(tools=[hints]).to_prompt() == parse(tools=[NOW]).to_prompt()

    def test_calls_and_results(self) -> None:
        second = {
            "type": "tool_result",
            "tool_use_id": "call_2",
            "content": [{"type": "text", "text": "R"}] * 2,
        }
        calls = {"role": "assistant", "content": [USE, {**USE, "id": "call_2", "caller": {"type": "direct"}}]}
        asked = [ASK, calls, {"role": "user", "content": [RESULT, second, {"type": "text", "text": "And?"}]}]
        arguments = '{"city": "Zürich"}'
        assert parse(messages=asked).to_prompt().messages == (
            ChatMessage("user", "What is the weather?"),
            ChatMessage(
                "assistant",
                "",
                tool_calls=(
                    ToolCall("call_1", "weather", arguments),
                    ToolCall("call_2", "weather", arguments),
                ),
            ),
            ChatMessage("tool", "Sun", tool_call_id="call_1"),
            ChatMessage("tool", "RR", tool_call_id="call_2"),
            ChatMessage("user", "And?"),
        )
        assert parse(messages=[ASK, CALLED, asked[-1]]).to_prompt().messages[1].content == "I look."

    @pytest.mark.parametrize(
        ("fields", "content"),
        [
            ({"content": None}, ""),
            ({"content": []}, ""),
            ({"is_error": False}, "Sun"),
            ({"is_error": True}, "Error: Sun"),
            ({"is_error": True, "content": [{"type": "text", "text": "No such city"}]}, "Error: No such city"),
            ({"cache_control": {"type": "ephemeral"}}, "Sun"),
        ],
    )  # fmt: skip
    def test_what_a_result_says(self, fields: dict[str, Any], content: str) -> None:
        *_, last = parse(messages=results({**RESULT, **fields})).to_prompt().messages
        assert last == ChatMessage("tool", content, tool_call_id="call_1")

    def test_where_results_are_named(self) -> None:
        bare = Request(
            id="r", endpoint="messages", tenant=Tenant(name="t"), model="auto", prompt=Prompt(), session=None,
            timeout=1.0, priority=0,
        )  # fmt: skip
        body = parse(messages=results(RESULT, {**RESULT, "tool_use_id": "call_2"}))
        assert body.sampled(bare).result_fields == (
            "messages[2].content[0].tool_use_id",
            "messages[2].content[1].tool_use_id",
        )

    def test_a_count_has_the_tools_too(self) -> None:
        ask = {
            "model": "auto",
            "messages": results(RESULT),
            "tools": [WEATHER],
            "tool_choice": {"type": "any"},
        }
        prompt = decode_count(json.dumps(ask).encode()).to_prompt()
        assert prompt.tools == (Tool("weather", "Of a city", SCHEMA),)
        assert [message.role for message in prompt.messages] == ["user", "assistant", "tool"]

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"tools": "x"}, "tools"),
            ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
            ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
            ({"tools": [{"input_schema": {"type": "object"}}]}, "tools[0].name"),
            ({"tools": [WEATHER, NOW, NOW]}, "tools[2].name"),
            ({"tools": [tool(name="a b")]}, "tools[0].name"),
            ({"tools": [tool(name="x" * 129)]}, "tools[0].name"),
            ({"tools": [tool(input_schema={"type": "string"})]}, "tools[0].input_schema.type"),
            ({"tools": [NOW, tool(name="f", input_schema={"d": "x" * 70_000})]}, "tools[1].input_schema"),
            ({"tools": [tool(defer_loading=True)]}, "tools[0].defer_loading"),
            ({"tools": [tool(input_examples=[{}])]}, "tools[0].input_examples"),
            ({"tools": [tool(eager_input_streaming=False)]}, "tools[0].eager_input_streaming"),
            ({"tools": [tool(parameters={})]}, "tools[0].parameters"),
            ({"tools": [tool(name=f"f{n}") for n in range(129)]}, "tools"),
            ({"tools": [NOW], "tool_choice": "any"}, "tool_choice"),
            ({"tools": [NOW], "tool_choice": {"type": "required"}}, "tool_choice.type"),
            ({"tools": [NOW], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
            ({"tools": [NOW], "tool_choice": {"type": "tool", "name": "then"}}, "tool_choice.name"),
            ({"tools": [NOW], "tool_choice": {"type": "none", "disable_parallel_tool_use": True}},
             "tool_choice.disable_parallel_tool_use"),
            ({"tool_choice": {"type": "any"}}, "tool_choice"),
            ({"messages": [{"role": "user", "content": [USE]}]}, "messages[0].content[0].type"),
            ({"messages": [ASK, {"role": "assistant", "content": [RESULT]}, ASK]}, "messages[1].content[0].type"),
            ({"messages": [{"role": "system", "content": [RESULT]}, ASK]}, "messages[0].content[0].type"),
            ({"messages": [ASK, {"role": "assistant", "content": [USE, USE]}, ASK]}, "messages[1].content[1].id"),
            ({"messages": [ASK, {"role": "assistant", "content": [{**USE, "input": "x"}]}, ASK]},
             "messages[1].content[0].input"),
            ({"messages": [ASK, {"role": "assistant", "content": [{**USE, "input": DEEP}]}, ASK]},
             "messages[1].content[0].input"),
            ({"messages": [ASK, {"role": "assistant", "content": [{**USE, "input": {"a": "x" * 300_000}}]}]},
             "messages[1].content[0].input"),
            ({"messages": [ASK, {"role": "assistant", "content": [{**USE, "toolset_name": "t"}]}]},
             "messages[1].content[0].toolset_name"),
            ({"messages": results({"type": "tool_result", "content": "x"})}, "messages[2].content[0].tool_use_id"),
            ({"messages": results({**RESULT, "content": [{"type": "image"}]})},
             "messages[2].content[0].content[0].type"),
            ({"messages": results({**RESULT, "content": 5})}, "messages[2].content[0].content"),
            ({"messages": results({**RESULT, "is_error": "no"})}, "messages[2].content[0].is_error"),
            ({"messages": results({"type": "text", "text": "And?"}, RESULT)}, "messages[2].content[1]"),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_named(self, fields: dict[str, Any], param: str) -> None:
        error = refused(**fields)
        assert error.param == param
        assert error.message.startswith(param)


class _Deltas:
    async def remember(self) -> None: ...

    async def aclose(self) -> None: ...


def answer() -> Answer:
    route = Route(order=("7b",), reason="", assessment=None)
    deltas: Any = _Deltas()
    return Answer(id="r", created=1, tier="7b", route=route, session=None, deltas=deltas)


def calling(arguments: str) -> list[Delta]:
    piece = CallPiece(index=0, id="call_1", name="weather")
    return [Delta(calls=(piece, CallPiece(index=0, arguments=arguments)))]


class TestRendering:
    def test_whole(self) -> None:
        deltas = [Delta(text="I look."), *calling('{"city": "Zürich"}')]
        whole = MessageRendering().whole(answer(), deltas, Ending(finish="tool_calls", usage=USAGE))
        assert whole["content"] == [{"type": "text", "text": "I look."}, USE]
        assert whole["stop_reason"] == "tool_use"

    @pytest.mark.parametrize(
        ("arguments", "given"),
        [
            ("", {}),
            ('{"a": [1, null]}', {"a": [1, None]}),
            ("[1]", {"INVALID_JSON": "[1]"}),
            ('{"city": "Par', {"INVALID_JSON": '{"city": "Par'}),
            ("{'city': 1}", {"INVALID_JSON": "{'city': 1}"}),
        ],
    )
    def test_inputs_are_objects_and_nothing_of_them_is_lost(self, arguments: str, given: Any) -> None:
        ending = Ending(finish="length", usage=USAGE)
        whole = MessageRendering().whole(answer(), calling(arguments), ending)
        (block,) = whole["content"]
        assert (block["input"], whole["stop_reason"]) == (given, "max_tokens")

    def test_an_answer_without_words_is_an_empty_text(self) -> None:
        whole = MessageRendering().whole(answer(), [Delta()], Ending(finish="stop", usage=USAGE))
        assert whole["content"] == [{"type": "text", "text": ""}]

"""Tools in a chat: what a body may say of them, and how calls are told."""

import json
from typing import Any

import pytest

from backends.backend import CallPiece, Delta, Usage
from backends.prompt import ChatMessage, Tool, ToolCall, ToolChoice
from gateway.api.chat import ChatBody, ChatRendering, decode
from gateway.api.dialect import Ending
from gateway.errors import ApiError
from gateway.request import Answer, Route

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city", "parameters": SCHEMA, "strict": True},
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
ENDLESS: dict[str, Any] = {"type": "object", "properties": {"me": {"$ref": "#"}}, "required": ["me"]}
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
ASK: dict[str, Any] = {"role": "user", "content": "What is the weather?"}


def allowed(*tools: Any, mode: str = "auto") -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


CALL: dict[str, Any] = {
    "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}
}  # fmt: skip
CALLED: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "call_1", "content": "Sun"}
USAGE = Usage(prompt_tokens=3, completion_tokens=4)


def parse(**fields: Any) -> ChatBody:
    return decode(json.dumps({"model": "auto", "messages": [ASK], **fields}).encode())


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        parse(**fields)
    assert error.value.status == 400
    return error.value


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


class TestBody:
    def test_tools(self) -> None:
        prompt = parse(tools=[WEATHER, NOW]).to_prompt()
        assert prompt.tools == (Tool("weather", "Of a city", SCHEMA, True), Tool("now"))
        assert prompt.tool_choice == ToolChoice("auto")

    @pytest.mark.parametrize(
        ("fields", "choice"),
        [
            ({"tool_choice": "auto"}, ToolChoice("auto")),
            ({"tool_choice": None, "parallel_tool_calls": None}, ToolChoice("auto")),
            ({"tool_choice": "none"}, ToolChoice("none")),
            ({"tool_choice": "required"}, ToolChoice("required")),
            ({"tool_choice": NAMED}, ToolChoice("required", "now")),
            ({"parallel_tool_calls": False}, ToolChoice("auto", None, False)),
            ({"tool_choice": allowed(NAMED)}, ToolChoice("auto", None, True, ("now",))),
            (
                {"tool_choice": allowed(NAMED, NAMED, mode="required"), "parallel_tool_calls": False},
                ToolChoice("required", None, False, ("now", "now")),
            ),
        ],
    )
    def test_choice(self, fields: dict[str, Any], choice: ToolChoice) -> None:
        assert parse(tools=[WEATHER, NOW], **fields).to_prompt().tool_choice == choice

    def test_a_schema_without_end_that_nobody_is_held_to_is_only_told(self) -> None:
        parse(tools=[function(parameters=ENDLESS)])
        parse(tools=[function(parameters=ENDLESS, strict=True)], tool_choice="none")
        parse(tools=[NOW, function(parameters=ENDLESS, strict=True)], tool_choice=NAMED)

    @pytest.mark.parametrize("off", [{}, {"tools": []}, {"tools": None}])
    @pytest.mark.parametrize("choice", ["none", "auto", None])
    def test_without_tools_there_is_nothing_to_choose(self, off: dict[str, Any], choice: str | None) -> None:
        prompt = parse(**off, tool_choice=choice, parallel_tool_calls=False).to_prompt()
        assert (prompt.tools, prompt.tool_choice) == ((), ToolChoice())

    def test_calls_and_results(self) -> None:
        said = {"role": "assistant", "content": "Both.", "tool_calls": [CALL, {**CALL, "id": "call_2"}]}
        parts = {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "Rain"}]}
        messages = parse(messages=[ASK, CALLED, RESULT, said, parts]).to_prompt().messages
        call = ToolCall("call_1", "weather", '{"city": "Paris"}')
        assert messages[1:3] == (
            ChatMessage("assistant", "", tool_calls=(call,)),
            ChatMessage("tool", "Sun", tool_call_id="call_1"),
        )
        assert messages[3].content == "Both." and [c.id for c in messages[3].tool_calls] == [
            "call_1",
            "call_2",
        ]
        assert messages[4] == ChatMessage("tool", "Rain", tool_call_id="call_2")

    def test_an_answer_of_ours_without_calls_comes_back(self) -> None:
        messages = parse(messages=[ASK, {"role": "assistant", "content": "Hi", "tool_calls": []}, ASK])
        assert messages.to_prompt().messages[1] == ChatMessage("assistant", "Hi")

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"tools": "x"}, "tools"),
            ({"tools": [WEATHER, NOW, NOW]}, "tools[2].function.name"),
            ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
            ({"tools": [{"type": "function"}]}, "tools[0].function"),
            ({"tools": [function(name="a b")]}, "tools[0].function.name"),
            ({"tools": [function(name="")]}, "tools[0].function.name"),
            ({"tools": [function(name="x" * 65)]}, "tools[0].function.name"),
            ({"tools": [function(parameters=[])]}, "tools[0].function.parameters"),
            ({"tools": [function(parameters={"type": "string"})]}, "tools[0].function.parameters.type"),
            ({"tools": [NOW, function(parameters={"d": "x" * 70_000})]}, "tools[1].function.parameters"),
            ({"tools": [function(parameters=ENDLESS, strict=True)]}, "tools[0].function.parameters"),
            ({"tools": [NOW, function(parameters=ENDLESS)], "tool_choice": "required"},
             "tools[1].function.parameters"),
            ({"tools": [function(parameters=json.loads('{"a":' * 80 + "1" + "}" * 80))]},
             "tools[0].function.parameters"),
            ({"tools": [function(odd=1)]}, "tools[0].function.odd"),
            ({"tools": [function(name=f"f{n}") for n in range(129)]}, "tools"),
            ({"tools": [NOW], "tool_choice": "any"}, "tool_choice"),
            ({"tools": [WEATHER], "tool_choice": NAMED}, "tool_choice.function.name"),
            ({"tools": [NOW], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
            ({"tools": [NOW], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
            ({"tools": [NOW], "tool_choice": allowed()}, "tool_choice.allowed_tools.tools"),
            ({"tools": [NOW], "tool_choice": allowed(NAMED, mode="none")}, "tool_choice.allowed_tools.mode"),
            ({"tools": [NOW], "tool_choice": allowed({"type": "custom"})},
             "tool_choice.allowed_tools.tools[0].type"),
            ({"tools": [NOW], "tool_choice": allowed(NAMED, {"type": "function", "function": {"name": "f"}})},
             "tool_choice.allowed_tools.tools[1].function.name"),
            ({"tool_choice": allowed(NAMED)}, "tool_choice.allowed_tools.tools[0].function.name"),
            ({"tool_choice": NAMED}, "tool_choice.function.name"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tools": [NOW], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
            ({"messages": [ASK, {"role": "assistant"}]}, "messages[1].content"),
            ({"messages": [ASK, {"role": "assistant", "content": None, "tool_calls": []}]}, "messages[1].content"),
            ({"messages": [ASK, {**CALLED, "tool_calls": [CALL, CALL]}]}, "messages[1].tool_calls[1].id"),
            ({"messages": [ASK, {**CALLED, "tool_calls": [{**CALL, "type": "custom"}]}]},
             "messages[1].tool_calls[0].type"),
            ({"messages": [ASK, {**CALLED, "tool_calls": [{"id": "c", "type": "function"}]}]},
             "messages[1].tool_calls[0].function"),
            ({"messages": [ASK, CALLED, {"role": "tool", "content": "Sun"}]}, "messages[2].tool_call_id"),
            ({"messages": [ASK, CALLED, {**RESULT, "content": None}]}, "messages[2].content"),
            ({"messages": [{**ASK, "tool_call_id": "call_1"}]}, "messages[0].tool_call_id"),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_named(self, fields: dict[str, Any], param: str) -> None:
        assert refused(**fields).param == param


DELTAS = [
    Delta(text="I look.", tokens=2),
    Delta(calls=(CallPiece(index=0, id="call_a", name="weather"), CallPiece(index=0, arguments='{"city"'))),
    Delta(calls=(CallPiece(index=0, arguments=': "Paris"}'),)),
    Delta(calls=(CallPiece(index=1, id="call_b", name="now"), CallPiece(index=1, arguments="{}"))),
    Delta(finish="tool_calls", usage=USAGE),
]
ENDING = Ending(finish="tool_calls", usage=USAGE)


class _Deltas:
    async def remember(self) -> None: ...

    async def aclose(self) -> None: ...


def answer() -> Answer:
    route = Route(order=("7b",), reason="", assessment=None)
    deltas: Any = _Deltas()
    return Answer(id="r", created=1, tier="7b", route=route, session=None, deltas=deltas)


class TestRendering:
    def rendering(self, n: int = 1) -> ChatRendering:
        return ChatRendering(n, False, scored=False, tools=True)

    def test_whole(self) -> None:
        (choice,) = self.rendering().whole(answer(), DELTAS, ENDING)["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"] == {
            "role": "assistant",
            "content": "I look.",
            "refusal": None,
            "tool_calls": [
                {"id": "call_a", "type": "function",
                 "function": {"name": "weather", "arguments": '{"city": "Paris"}'}},
                {"id": "call_b", "type": "function", "function": {"name": "now", "arguments": "{}"}},
            ],
        }  # fmt: skip

    def test_without_text_the_content_is_null(self) -> None:
        (choice,) = self.rendering().whole(answer(), DELTAS[1:], ENDING)["choices"]
        assert choice["message"]["content"] is None

    def test_without_calls_it_is_an_answer_like_any_other(self) -> None:
        ending = Ending(finish="stop", usage=USAGE)
        deltas = [Delta(text="Hi"), Delta(finish="stop", usage=USAGE)]
        (choice,) = self.rendering().whole(answer(), deltas, ending)["choices"]
        assert choice["message"] == {"role": "assistant", "content": "Hi", "refusal": None}
        assert choice["finish_reason"] == "stop"

    def test_streamed(self) -> None:
        rendering = self.rendering()
        chunks = [*rendering.opening(answer())]
        for delta in DELTAS[:-1]:
            chunks += rendering.piece(delta)
        chunks += rendering.closing(ENDING)
        assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
            {"role": "assistant", "content": None},
            {"content": "I look."},
            {"tool_calls": [{"index": 0, "id": "call_a", "type": "function",
                             "function": {"name": "weather", "arguments": '{"city"'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": ': "Paris"}'}}]},
            {"tool_calls": [{"index": 1, "id": "call_b", "type": "function",
                             "function": {"name": "now", "arguments": "{}"}}]},
            {},
        ]  # fmt: skip
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "tool_calls"

    def test_each_of_several_answers_has_its_own_calls(self) -> None:
        first = Delta(index=0, text="No.", finish="stop")
        second = Delta(
            index=1, calls=(CallPiece(index=0, id="call_a", name="now"),), finish="tool_calls", usage=USAGE
        )
        ending = Ending(index=1, finish="tool_calls", usage=USAGE)
        choices = self.rendering(2).whole(answer(), [first, second], ending)["choices"]
        assert [choice["finish_reason"] for choice in choices] == ["stop", "tool_calls"]
        assert ["tool_calls" in choice["message"] for choice in choices] == [False, True]
        rendering = self.rendering(2)
        rendering.opening(answer())
        told = [chunk["choices"][0] for chunk in (*rendering.piece(first), *rendering.piece(second))]
        assert [(each["index"], each["finish_reason"]) for each in told] == [
            (0, None),
            (0, "stop"),
            (1, None),
        ]

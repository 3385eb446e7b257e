"""Tools in a response: what a body may say of them, and the turns that its items make up."""

import json
from typing import Any

import pytest

from backends.prompt import ChatMessage, Tool, ToolCall, ToolChoice
from gateway.api.responses import ResponsesBody, decode
from gateway.api.responses_items import told_turn, turns_of
from gateway.errors import ApiError
from sessions import Call, Turn

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
CLOSED: dict[str, Any] = {**SCHEMA, "required": ["city"], "additionalProperties": False}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "Of a city",
    "parameters": SCHEMA,
}
NOW: dict[str, Any] = {"type": "function", "name": "now"}


def allowed(*names: str, mode: str = "auto") -> dict[str, Any]:
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


ASK: dict[str, Any] = {"role": "user", "content": "What is the weather?"}
CALL: dict[str, Any] = {
    "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "status": "completed",
    "arguments": '{"city": "Paris"}',
}  # fmt: skip
OTHER = {**CALL, "id": "fc_2", "call_id": "call_2"}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "call_1", "output": "Sun"}


def parse(**fields: Any) -> ResponsesBody:
    return decode(json.dumps({"model": "auto", "input": [ASK], **fields}).encode())


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        parse(**fields)
    assert error.value.status == 400
    return error.value


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": "f", **fields}


def test_tools() -> None:
    prompt = parse(tools=[WEATHER, NOW]).to_prompt()
    assert prompt.tools == (Tool("weather", "Of a city", SCHEMA), Tool("now"))
    assert prompt.tool_choice == ToolChoice("auto")


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (None, False),
        (SCHEMA, False),
        (CLOSED, True),
        ({**CLOSED, "required": []}, False),
        ({"type": "object", "properties": {}, "additionalProperties": False}, True),
        ({**CLOSED, "properties": {"city": SCHEMA}}, False),
        ({**CLOSED, "properties": {"city": {"type": "array", "items": CLOSED}}}, True),
        ({**CLOSED, "properties": {"city": {"anyOf": [CLOSED, SCHEMA]}}}, False),
        ({**CLOSED, "properties": 5}, False),
    ],
)
def test_strict_where_nothing_is_said_and_the_schema_is_made_for_it(schema: Any, strict: bool) -> None:
    assert parse(tools=[function(parameters=schema)]).to_prompt().tools[0].strict == strict
    assert parse(tools=[function(parameters=schema, strict=False)]).to_prompt().tools[0].strict is False
    assert parse(tools=[function(parameters=schema, strict=True)]).to_prompt().tools[0].strict is True


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({"tool_choice": "auto"}, ToolChoice("auto")),
        ({"tool_choice": None, "parallel_tool_calls": None}, ToolChoice("auto")),
        ({"tool_choice": "none"}, ToolChoice("none")),
        ({"tool_choice": "required"}, ToolChoice("required")),
        ({"tool_choice": {"type": "function", "name": "now"}}, ToolChoice("required", "now")),
        ({"tool_choice": allowed("now")}, ToolChoice("auto", None, True, ("now",))),
        (
            {"tool_choice": allowed("now", "weather", mode="required")},
            ToolChoice("required", None, True, ("now", "weather")),
        ),
        ({"parallel_tool_calls": False}, ToolChoice("auto", None, False)),
    ],
)
def test_choice(fields: dict[str, Any], choice: ToolChoice) -> None:
    assert parse(tools=[WEATHER, NOW], **fields).to_prompt().tool_choice == choice


@pytest.mark.parametrize("off", [{}, {"tools": []}, {"tools": None}])
def test_without_tools_there_is_nothing_to_choose(off: dict[str, Any]) -> None:
    prompt = parse(**off, tool_choice="none", parallel_tool_calls=False).to_prompt()
    assert (prompt.tools, prompt.tool_choice) == ((), ToolChoice())


def test_what_is_off_may_be_said_of_a_tool() -> None:
    plain = function(allowed_callers=["direct"], defer_loading=False, output_schema=None, **{"async": False})
    assert parse(tools=[plain]) == parse(tools=[function()])


def test_calls_belong_to_the_answer_that_they_follow_on() -> None:
    said = {"role": "assistant", "content": "I look."}
    body = parse(input=[ASK, said, CALL, OTHER, OUTPUT, {**OUTPUT, "call_id": "call_2", "name": "weather"}])
    calls = (Call("call_1", "weather", '{"city": "Paris"}'), Call("call_2", "weather", '{"city": "Paris"}'))
    assert turns_of(body.items) == (
        Turn("user", "What is the weather?"),
        Turn("assistant", "I look.", calls=calls),
        Turn("tool", "Sun", answers="call_1"),
        Turn("tool", "Sun", answers="call_2", name="weather"),
    )
    assert body.to_prompt().messages[1] == ChatMessage(
        "assistant", "I look.", tool_calls=tuple(ToolCall(*(c.id, c.name, c.arguments)) for c in calls)
    )


def test_calls_that_follow_on_no_answer_are_one_without_words() -> None:
    loop = [ASK, CALL, OUTPUT, OTHER, {**OUTPUT, "call_id": "call_2"}]
    roles = [(turn.role, [call.id for call in turn.calls]) for turn in turns_of(parse(input=loop).items)]
    assert roles == [
        ("user", []), ("assistant", ["call_1"]), ("tool", []), ("assistant", ["call_2"]), ("tool", []),
    ]  # fmt: skip
    assert turns_of(parse(input=[CALL]).items)[0].content == ""


def test_an_output_in_parts() -> None:
    parts = [{"type": "input_text", "text": "Su"}, {"type": "input_text", "text": "n"}]
    body = parse(input=[ASK, CALL, {**OUTPUT, "output": parts, "id": "fco_1"}])
    assert turns_of(body.items)[-1].content == "Sun"
    assert body.items[-1].told() == {**OUTPUT, "id": "fco_1", "status": "completed", "output": parts}
    assert parse(input=[ASK, CALL, {**OUTPUT, "output": []}]).to_prompt().messages[-1].content == ""


def test_items_are_told_as_they_came() -> None:
    body = parse(input=[CALL, {**OUTPUT, "name": "weather"}])
    assert body.items[0].told() == CALL
    told = body.items[1].told()
    assert told == {**OUTPUT, "name": "weather", "status": "completed", "id": told["id"]}


def test_a_turn_is_told_as_the_items_that_it_is_made_of() -> None:
    turns = turns_of(parse(input=[{"role": "assistant", "content": "I look."}, CALL, OTHER, OUTPUT]).items)
    told = [item for number, turn in enumerate(turns) for item in told_turn(turn, f"x_{number}")]
    assert [item["type"] for item in told] == [
        "message", "function_call", "function_call", "function_call_output",
    ]  # fmt: skip
    said, first, second, output = (item["id"] for item in told)
    assert (said, output) == ("msg_x_0", "fco_x_1")
    assert first != second and all(call.startswith("fc_x_0_") for call in (first, second))
    assert [item["type"] for item in told_turn(Turn("assistant", "", calls=turns[0].calls), "x")] == [
        "function_call", "function_call",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER, {"type": "custom", "name": "c"}]}, "tools[1].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function"),
        ({"tools": [WEATHER, NOW, NOW]}, "tools[2].name"),
        ({"tools": [function(name="a b")]}, "tools[0].name"),
        ({"tools": [function(name="x" * 129)]}, "tools[0].name"),
        ({"tools": [function(defer_loading=True)]}, "tools[0].defer_loading"),
        ({"tools": [function(output_schema={})]}, "tools[0].output_schema"),
        ({"tools": [function(parameters={"type": "string"})]}, "tools[0].parameters.type"),
        ({"tools": [NOW, function(parameters={"d": "x" * 70_000})]}, "tools[1].parameters"),
        ({"tools": [function(name=f"f{n}") for n in range(129)]}, "tools"),
        ({"tools": [NOW], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "name": "then"}}, "tool_choice.name"),
        ({"tools": [NOW], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        ({"tools": [NOW], "tool_choice": allowed("now", mode="none")}, "tool_choice.mode"),
        ({"tools": [NOW], "tool_choice": allowed("now", "then")}, "tool_choice.tools[1].name"),
        ({"tools": [NOW], "tool_choice": {**allowed(), "tools": [{"type": "mcp", "server_label": "x"}]}},
         "tool_choice.tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"input": [ASK, {**CALL, "arguments": {}}]}, "input[1].arguments"),
        ({"input": [ASK, {**CALL, "namespace": "n"}]}, "input[1].namespace"),
        ({"input": [ASK, CALL, {**CALL, "id": "fc_9"}]}, "input[2].call_id"),
        ({"input": [ASK, CALL, {**OTHER, "id": "fc_1"}]}, "input[2].id"),
        ({"input": [ASK, CALL, {"type": "function_call_output", "output": "x"}]}, "input[2].call_id"),
        ({"input": [ASK, CALL, {**OUTPUT, "output": None}]}, "input[2].output"),
        ({"input": [ASK, CALL, {**OUTPUT, "output": [{"type": "input_image"}]}]}, "input[2].output[0].type"),
        ({"input": [ASK, CALL, {**OUTPUT, "caller": {"type": "program", "caller_id": "p"}}]}, "input[2].caller"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert error.message.startswith(param)

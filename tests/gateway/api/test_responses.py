"""Bodies of `/v1/responses`: what is honoured, what is harmless, what is refused and how it is named."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.prompt import ChatMessage
from gateway.api.responses import OFF, ResponsesBody, decode
from gateway.errors import ApiError
from sessions import Turn

ASK: dict[str, Any] = {"model": "auto", "input": "Hello?"}


def parse(**fields: Any) -> ResponsesBody:
    return decode(json.dumps({**ASK, **fields}).encode())


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        parse(**fields)
    assert error.value.status == 400
    return error.value


def item(content: Any = "x", **fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **fields}]


def test_defaults() -> None:
    body = parse()
    assert body.to_prompt().messages == (ChatMessage("user", "Hello?"),)
    assert (body.temperature, body.top_p, body.max_output_tokens) == (1.0, 1.0, None)
    assert (body.store, body.stream, body.metadata, body.conversation_id) == (True, False, {}, None)


def test_instructions_stand_before_what_was_said() -> None:
    body = parse(instructions="Be brief.", input=item("Two?"))
    history = (Turn("system", "Be kind."), Turn("user", "One?"), Turn("assistant", "Yes.", tier="7b"))
    assert [(m.role, m.content) for m in body.prompt_after(history).messages] == [
        ("system", "Be brief."), ("system", "Be kind."), ("user", "One?"), ("assistant", "Yes."), ("user", "Two?"),
    ]  # fmt: skip


def test_items_in_parts_and_the_newer_words() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    answer = {
        "id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "phase": "final_answer",
        "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}],
    }  # fmt: skip
    body = parse(input=[{"role": "developer", "content": parts}, answer, *item("")])
    assert [(m.role, m.content) for m in body.to_prompt().messages] == [
        ("system", "ab"), ("assistant", "c"), ("user", ""),
    ]  # fmt: skip
    told = [each.told() for each in body.items]
    assert told[1] == {key: value for key, value in answer.items() if key != "phase"}
    assert told[0]["content"] == parts and told[2]["content"] == [{"type": "input_text", "text": ""}]
    assert told[0]["id"] != told[2]["id"]


def test_a_conversation_may_be_named_in_two_ways() -> None:
    assert parse(conversation="conv_1").conversation_id == "conv_1"
    assert parse(conversation={"id": "conv_1"}).conversation_id == "conv_1"


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in OFF for value in (None, *OFF[name])])
def test_what_is_off_may_be_said(name: str, value: Any) -> None:
    assert parse(**{name: value}) == parse()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("background", True),
        ("include", ["message.output_text.logprobs"]),
        ("max_tool_calls", 1),
        ("prompt", {"id": "p"}),
        ("prompt_cache_retention", "24h"),
        ("reasoning", {"effort": "high"}),
        ("stream_options", {"include_obfuscation": True}),
        ("top_logprobs", 1),
        ("truncation", "auto"),
    ],
)
def test_what_is_not_supported_is_named(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert (error.code, error.param) == ("unsupported_parameter", name)


CITED = {"type": "output_text", "text": ""}
IMAGE = {"type": "input_image", "image_url": "https://example.org/x.png"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": item(role="tool")}, "input[0].role"),
        ({"input": item(type="item_reference", id="msg_1")}, "input[0].type"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type"),
        ({"input": item(None)}, "input[0].content"),
        ({"input": item([])}, "input[0].content"),
        ({"input": item([IMAGE])}, "input[0].content[0].type"),
        ({"input": item([{"type": "input_text"}])}, "input[0].content[0].text"),
        ({"input": item([{**CITED, "annotations": [{}]}])}, "input[0].content[0].annotations"),
        ({"input": item(phase="commentary")}, "input[0].phase"),
        ({"input": item(name="ann")}, "input[0].name"),
        ({"input": [*item(id="a"), *item(id="b"), *item(id="a")]}, "input[2].id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"seed": 5}, "seed"),
        ({"temperature": 2.1}, "temperature"),
        ({"store": 1}, "store"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"conversation": {}}, "conversation.id"),
        ({"previous_response_id": ""}, "previous_response_id"),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id"),
        ({"cache_salt": "x"}, "cache_salt"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert error.message.startswith(param)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({*ResponsesBody.__struct_fields__, *OFF})


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_any_body_is_taken_or_refused_with_a_400(fields: dict[str, Any]) -> None:
    try:
        data = json.dumps({**ASK, **fields}).encode()
    except UnicodeEncodeError:
        return
    try:
        body = decode(data)
    except ApiError as error:
        assert error.status == 400 and error.param != ""
        msgspec.json.encode([error.message, error.param])  # can be sent
    else:
        assert body.to_prompt().messages

"""Bodies of `/v1/messages`: what is honoured, what is harmless, what is refused and how it is named."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.backend import Usage
from backends.prompt import ChatMessage, Prompt
from gateway.api.dialect import Ending
from gateway.api.messages import COUNT_OFF, OFF, MessagesBody, decode, decode_count
from gateway.api.messages_rendering import MessageRendering
from gateway.config import Tenant
from gateway.errors import ApiError, anthropic_error
from gateway.request import Request

ASK: dict[str, Any] = {
    "model": "auto",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hello?"}],
}


def parse(**fields: Any) -> MessagesBody:
    return decode(json.dumps({**ASK, **fields}).encode())


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        parse(**fields)
    assert error.value.status == 400
    return error.value


def said(content: Any, role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": content}]


def sampled(body: MessagesBody) -> Request:
    bare = Request(
        id="r", endpoint="messages", tenant=Tenant(name="t"), model="auto", prompt=Prompt(), session=None,
        timeout=1.0, priority=0,
    )  # fmt: skip
    return body.sampled(bare)


def test_defaults() -> None:
    body = parse()
    assert body.to_prompt().messages == (ChatMessage("user", "Hello?"),)
    request = sampled(body)
    assert (request.max_tokens, request.temperature, request.top_p, request.top_k) == (9, 1.0, 1.0, 0)
    assert (request.stop, request.seed, body.stream) == ((), None, False)


def test_everything_that_is_honoured() -> None:
    body = parse(
        max_tokens=5, temperature=0, top_p=0.5, top_k=40, stop_sequences=["a", "b"], stream=True, system="Be brief."
    )  # fmt: skip
    request = sampled(body)
    assert (request.max_tokens, request.temperature, request.top_p, request.top_k) == (5, 0.0, 0.5, 40)
    assert request.stop == ("a", "b") and body.stream
    assert body.to_prompt().messages == (ChatMessage("system", "Be brief."), ChatMessage("user", "Hello?"))


def test_content_in_blocks_and_hints_on_them() -> None:
    hint = {"type": "ephemeral", "ttl": "1h"}
    blocks = [
        {"type": "text", "text": "a", "cache_control": hint},
        {"type": "text", "text": "b", "citations": None, "cache_control": None},
    ]
    body = parse(system=blocks, messages=[*said(blocks), *said("c", "assistant"), *said(blocks)])
    assert [(m.role, m.content) for m in body.to_prompt().messages] == [
        ("system", "ab"), ("user", "ab"), ("assistant", "c"), ("user", "ab"),
    ]  # fmt: skip
    assert parse(system=[]).to_prompt() == parse(system="").to_prompt() == parse().to_prompt()


@pytest.mark.parametrize(
    "hint",
    [
        {"metadata": {"user_id": "u"}},
        {"metadata": {}},
        {"service_tier": "standard_only"},
        {"cache_control": {"type": "ephemeral"}},
        *({name: value} for name in OFF for value in (None, *OFF[name])),
    ],
)
def test_what_is_a_hint_or_off_may_be_said(hint: dict[str, Any]) -> None:
    assert parse(**hint).to_prompt() == parse().to_prompt()
    assert sampled(parse(**hint)) == sampled(parse())


@pytest.mark.parametrize("name", sorted(OFF.keys() - {"thread"}))
def test_what_is_not_supported_is_named(name: str) -> None:
    error = refused(**{name: {"type": "enabled"}})
    assert (error.code, error.param) == ("unsupported_parameter", name)


def test_conversations_held_by_the_server_are_refused_as_its_clients_understand() -> None:
    error = refused(thread={"type": "create"})
    assert anthropic_error(error)["error"]["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }
    assert "details" not in anthropic_error(refused(seed=5))["error"]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": said("x", "tool")}, "messages[0].role"),
        ({"messages": said(None)}, "messages[0].content"),
        ({"messages": said([])}, "messages[0].content"),
        ({"messages": said(["x"])}, "messages[0].content[0]"),
        ({"messages": said([{"type": "text"}])}, "messages[0].content[0].text"),
        ({"messages": said([IMAGE])}, "messages[0].content[0].type"),
        ({"messages": said([{"type": "thinking", "thinking": ""}], "assistant")}, "messages[0].content[0].type"),
        ({"messages": said([{"type": "text", "text": "x", "citations": [{}]}])}, "messages[0].content[0].citations"),
        ({"messages": [*said("x"), *said("The answer is", "assistant")]}, "messages[1].role"),
        ({"system": [IMAGE]}, "system[0].type"),
        ({"system": 5}, "system"),
        ({"temperature": 1.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stream": 1}, "stream"),
        ({"metadata": {"account": "a"}}, "metadata.account"),
        ({"cache_control": {"type": "forever"}}, "cache_control.type"),
        ({"seed": 5}, "seed"),
        ({"cache_salt": "x"}, "cache_salt"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert error.message.startswith(param)


def test_a_count_needs_the_prompt_alone() -> None:
    ask = {name: ASK[name] for name in ("model", "messages")}
    assert decode_count(json.dumps({**ask, "system": "s", "tools": []}).encode()).to_prompt().messages == (
        ChatMessage("system", "s"), ChatMessage("user", "Hello?"),
    )  # fmt: skip
    for name in ("max_tokens", "stream", *sorted(OFF.keys() - COUNT_OFF.keys())):
        with pytest.raises(ApiError) as error:
            decode_count(json.dumps({**ask, name: 5}).encode())
        assert error.value.param == name


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (Ending(finish="stop", usage=Usage(prompt_tokens=5, completion_tokens=2)), ("end_turn", None)),
        (Ending(finish="tool_calls", usage=Usage(prompt_tokens=5, completion_tokens=2)), ("tool_use", None)),
        (Ending(finish="length", usage=Usage(prompt_tokens=5, completion_tokens=2)), ("max_tokens", None)),
        (
            Ending(finish="stop", usage=Usage(prompt_tokens=5, completion_tokens=2), stopped_by="END"),
            ("stop_sequence", "END"),
        ),
    ],
)
def test_why_it_stopped(ending: Ending, reason: tuple[str, str | None]) -> None:
    *_, stop, told = MessageRendering().closing(ending)
    assert stop == {"type": "content_block_stop", "index": 0}
    assert (told["delta"]["stop_reason"], told["delta"]["stop_sequence"]) == reason


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({*MessagesBody.__struct_fields__, *OFF})


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

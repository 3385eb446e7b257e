"""Bodies of `/v1/chat/completions`: what is honoured, what is harmless, what is refused and how it is named."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.prompt import ChatMessage
from gateway.api.chat import CHAT_OFF, ChatBody, decode
from gateway.errors import ApiError

ASK: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "Hello?"}]}


def parse(**fields: Any) -> ChatBody:
    return decode(json.dumps({**ASK, **fields}).encode())


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        parse(**fields)
    assert error.value.status == 400
    assert error.value.type == "invalid_request_error"
    return error.value


def message(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "x", **fields}]


def test_defaults() -> None:
    body = parse()
    assert body.to_prompt().messages == (ChatMessage("user", "Hello?"),)
    assert (body.temperature, body.top_p, body.top_k, body.most_tokens) == (1.0, 1.0, 0, None)
    assert (body.stops, body.stop_token_ids, body.ignore_eos, body.unsigned_seed) == ((), [], False, None)
    assert not body.stream and not body.include_usage


def test_everything_that_is_honoured() -> None:
    body = parse(
        max_tokens=5, temperature=0, top_p=0.5, top_k=40, seed=-1, stop=["a", "b"], stop_token_ids=[0, 7],
        ignore_eos=True, stream=True, stream_options={"include_usage": True, "include_obfuscation": False},
        n=8, min_p=0.1, presence_penalty=-2, frequency_penalty=2, repetition_penalty=1.5, min_tokens=5,
        logit_bias={"0": -100, "4294967295": 0.5}, logprobs=True, top_logprobs=20,
    )  # fmt: skip
    assert (body.most_tokens, body.temperature, body.top_p, body.top_k) == (5, 0.0, 0.5, 40)
    assert (body.unsigned_seed, body.stops, body.stop_token_ids) == (2**64 - 1, ("a", "b"), [0, 7])
    assert body.ignore_eos and body.stream and body.include_usage
    assert (body.n, body.min_p, body.presence_penalty, body.frequency_penalty) == (8, 0.1, -2.0, 2.0)
    assert (body.repetition_penalty, body.min_tokens, body.told_logprobs) == (1.5, 5, 20)
    assert body.logit_bias == {"0": -100.0, "4294967295": 0.5}


def test_logprobs_need_no_alternatives() -> None:
    """vllm#4795: that was an error."""
    assert parse(logprobs=True).told_logprobs == 0
    assert parse(logprobs=False, top_logprobs=0).told_logprobs is None
    assert parse().told_logprobs is None


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e400"])
@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
)
def test_what_is_no_finite_number_is_refused(name: str, number: str) -> None:
    body = json.dumps({**ASK, name: 12345}).replace("12345", number)
    with pytest.raises(ApiError) as error:
        decode(body.encode())
    assert error.value.status == 400


def test_content_in_parts_and_the_newer_words() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = parse(
        messages=[{"role": "developer", "content": parts}, {"role": "user", "content": "", "name": "ann"}],
        max_completion_tokens=9,
    )
    assert body.to_prompt().messages == (ChatMessage("system", "ab"), ChatMessage("user", "", name="ann"))
    assert body.most_tokens == 9
    assert parse(stop="end").stops == ("end",)
    assert parse(max_tokens=3, max_completion_tokens=3).most_tokens == 3


@pytest.mark.parametrize("name", sorted({*ChatBody.__struct_fields__, *CHAT_OFF} - {"model", "messages"}))
def test_null_means_absent(name: str) -> None:
    assert parse(**{name: None}) == parse()


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in CHAT_OFF for value in CHAT_OFF[name]])
def test_what_is_off_may_be_said(name: str, value: Any) -> None:
    assert parse(**{name: value}) == parse()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user", "u"),
        ("metadata", {"a": "b"}),
        ("safety_identifier", "s"),
        ("prompt_cache_key", "k"),
        ("service_tier", "auto"),
        ("service_tier", "default"),
    ],
)
def test_hints_are_taken(name: str, value: Any) -> None:
    assert parse(**{name: value}).to_prompt() == parse().to_prompt()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("store", True),
        ("reasoning_effort", "high"),
        ("prediction", {"type": "content", "content": "x"}),
    ],
)
def test_what_is_not_supported_is_named(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert (error.code, error.param) == ("unsupported_parameter", name)
    assert name in error.message


def test_options_of_the_chat_template() -> None:
    options = {"enable_thinking": False, "thinking_budget": 100, "style": "brief"}
    assert parse(chat_template_kwargs=options).to_prompt().options == options
    assert parse(chat_template_kwargs=None).to_prompt().options == {}
    for wrong in ({"a b": 1}, {"a": [1]}, {"a": None}, {f"n{n}": 1 for n in range(17)}):
        assert (refused(chat_template_kwargs=wrong).param or "").startswith("chat_template_kwargs")
    for ours in ("messages", "tools", "add_generation_prompt", "bos_token"):
        assert refused(chat_template_kwargs={ours: "x"}).param == f"chat_template_kwargs.{ours}"


@pytest.mark.parametrize(
    "name", ["cache_salt", "chat_template", "template_kwargs", "api_base", "best_of", "echo", "Model"]
)
def test_what_is_unknown_is_named(name: str) -> None:
    error = refused(**{name: "x"})
    assert (error.code, error.param) == ("unknown_parameter", name)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"model": "x" * 257}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [None]}, "messages[0]"),
        ({"messages": message(role="function")}, "messages[0].role"),
        ({"messages": message(role=None)}, "messages[0].role"),
        ({"messages": message(content=None)}, "messages[0].content"),
        ({"messages": message(content=5)}, "messages[0].content"),
        ({"messages": message(content=[])}, "messages[0].content"),
        ({"messages": message(content=["x"])}, "messages[0].content[0]"),
        ({"messages": message(content=[{"type": "image_url", "image_url": {"url": "http://x"}}])},
         "messages[0].content[0].type"),
        ({"messages": message(content=[{"type": "input_audio", "text": "x"}])}, "messages[0].content[0].type"),
        ({"messages": message(name="")}, "messages[0].name"),
        ({"messages": [*message(), *message(odd=1)]}, "messages[1].odd"),
        ({"messages": message(tool_calls=[{"id": "c"}])}, "messages[0].tool_calls"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [None]}, "stop[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop": ["x"] * 10_000}, "stop"),
        ({"stop_token_ids": [2**31]}, "stop_token_ids[0]"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": 2**70}, "n"),
        ({"n": True}, "n"),
        ({"min_p": 1.1}, "min_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": False}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 10.5}, "repetition_penalty"),
        ({"logit_bias": []}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": None}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"05": 1}}, "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "logit_bias"),
        ({"logit_bias": {"the": 1}}, "logit_bias"),
        ({"logit_bias": {"1" * 12: 1}}, "logit_bias"),
        ({"logit_bias": {str(id): 1 for id in range(1025)}}, "logit_bias"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"min_tokens": 6, "max_completion_tokens": 5}, "min_tokens"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"stream": "true"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"odd": 1}}, "stream_options.odd"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"user": 5}, "user"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert error.message.startswith(param)


def test_what_is_missing_is_named() -> None:
    for name in ("model", "messages"):
        fields = {key: value for key, value in ASK.items() if key != name}
        with pytest.raises(ApiError) as error:
            decode(json.dumps(fields).encode())
        assert (error.value.code, error.value.param) == ("missing_required_parameter", name)


# Busy machines are slow; that says nothing of the code.
MORE = settings(max_examples=200)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({*ChatBody.__struct_fields__, *CHAT_OFF})


@MORE
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

"""Bodies of `/v1/completions`."""

import json
from typing import Any

import pytest

from gateway.api.completions import OFF, CompletionBody, decode
from gateway.errors import ApiError


def parse(**fields: Any) -> CompletionBody:
    return decode(json.dumps({"model": "7b", "prompt": "Say", **fields}).encode())


def test_a_text_and_a_list_of_one() -> None:
    assert parse().to_prompt().text == "Say"
    assert parse(prompt=["Say"]).to_prompt().text == "Say"
    assert parse(max_tokens=4).most_tokens == 4
    assert parse().to_prompt().messages == ()


def test_logprobs_and_echo() -> None:
    assert parse().told_logprobs is None
    assert parse(logprobs=0).told_logprobs == 0
    body = parse(logprobs=20, echo=True, max_tokens=0)
    assert (body.told_logprobs, body.echo, body.most_tokens) == (20, True, 0)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in OFF for value in (None, *OFF[name])])
def test_what_is_off_may_be_said(name: str, value: Any) -> None:
    assert parse(**{name: value}) == parse()


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": ["a", "b"]}, "prompt", "invalid_value"),
        ({"prompt": [1, 2]}, "prompt", "invalid_value"),
        ({"prompt": [[1, 2]]}, "prompt", "invalid_value"),
        ({"prompt": 5}, "prompt", "invalid_value"),
        ({"messages": []}, "messages", "unknown_parameter"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "unknown_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"echo": 1}, "echo", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": -1, "echo": True}, "max_tokens", "invalid_value"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"logprobs": True}, "logprobs", "invalid_value"),
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"logprobs": -1}, "logprobs", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "unknown_parameter"),
    ],
)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ApiError) as error:
        parse(**fields)
    assert (error.value.status, error.value.param, error.value.code) == (400, param, code)

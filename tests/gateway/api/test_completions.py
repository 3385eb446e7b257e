"""Bodies of `/v1/completions`."""

import json
from typing import Any

import pytest

from backends.prompt import Prompt
from gateway.api.completions import MAX_PROMPTS, CompletionBody, decode
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


@pytest.mark.parametrize(
    "off", [{"store": False}, {"store": None}, {"suffix": ""}, {"suffix": None}, {"best_of": None}]
)
def test_what_is_off_may_be_said(off: dict[str, Any]) -> None:
    assert parse(**off) == parse()


def test_best_of_may_say_that_all_are_told() -> None:
    assert parse(n=3, best_of=3).n == 3


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ("a", {"prompt": "a"}),
        (["a", "b"], {"prompt[0]": "a", "prompt[1]": "b"}),
        ([1, 2], {"prompt": [1, 2]}),
        ([[1, 2], [3]], {"prompt[0]": [1, 2], "prompt[1]": [3]}),
        (["a"] * MAX_PROMPTS, {f"prompt[{n}]": "a" for n in range(MAX_PROMPTS)}),
    ],
)
def test_every_shape_of_prompts(prompt: Any, named: dict[str, Any]) -> None:
    assert dict(parse(prompt=prompt).prompts) == named


def test_a_gap_is_between_two_texts() -> None:
    assert parse(prompt="", suffix="after").to_prompt() == Prompt(text="", suffix="after")
    assert parse(prompt=[5, 6]).to_prompt() == Prompt(ids=(5, 6))


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": ["a", ""]}, "prompt[1]", "invalid_value"),
        ({"prompt": ["a", 1]}, "prompt", "invalid_value"),
        ({"prompt": [1.5]}, "prompt[0]", "invalid_value"),
        ({"prompt": [[1, 2.0]]}, "prompt[0][1]", "invalid_value"),
        ({"prompt": [[[1]]]}, "prompt[0][0]", "invalid_value"),
        ({"prompt": [{}]}, "prompt[0]", "invalid_value"),
        ({"prompt": [1, [2]]}, "prompt", "invalid_value"),
        ({"prompt": [[1], []]}, "prompt[1]", "invalid_value"),
        ({"prompt": [[1], [1, -2]]}, "prompt[1][1]", "invalid_value"),
        ({"prompt": [1, 2**31]}, "prompt[1]", "invalid_value"),
        ({"prompt": [True]}, "prompt[0]", "invalid_value"),
        ({"prompt": ["a"] * 65}, "prompt", "invalid_value"),
        ({"prompt": ["a"] * 33, "n": 4}, "n", "invalid_value"),
        ({"prompt": [1], "suffix": "x"}, "suffix", "invalid_value"),
        ({"suffix": "x", "echo": True}, "echo", "invalid_value"),
        ({"suffix": 1}, "suffix", "invalid_value"),
        ({"n": 2, "best_of": 1}, "best_of", "unsupported_parameter"),
        ({"prompt": 5}, "prompt", "invalid_value"),
        ({"messages": []}, "messages", "unknown_parameter"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "unknown_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"echo": 1}, "echo", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": -1, "echo": True}, "max_tokens", "invalid_value"),
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

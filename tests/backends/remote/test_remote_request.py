"""What each kind of server is sent, and what it is not."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from backends.backend import ChatMessage, Generation, Prompt, Rejected, Sampling
from backends.prompt import Tool, ToolCall, ToolChoice
from backends.remote_request import KINDS, compose, refusal
from gateway.config import Remote

Make = Callable[..., Generation]
ALL_OPTIONS: dict[str, Any] = {
    "top_k": 5, "top_p": 0.9, "seed": 11, "stop": ("x",), "stop_token_ids": (3,), "ignore_eos": True,
    "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.2, "min_tokens": 2,
    "logit_bias": {7: -1.0},
}  # fmt: skip


def test_every_kind_of_the_configuration_has_a_row() -> None:
    field = next(f for f in msgspec.structs.fields(Remote) if f.name == "kind")
    assert set(field.type.__args__) == set(KINDS)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_all_options(generation: Make, kind: str) -> None:
    sampling = Sampling(max_tokens=16, temperature=0, **ALL_OPTIONS)
    path, body = compose(KINDS[kind], "big", generation("Once", sampling=sampling, salt=b"\x0a"))
    assert path == "/completions"
    assert body == {
        "model": "big", "prompt": "Once", "stream": True, "stream_options": {"include_usage": True}, "seed": 11,
        "max_tokens": 16, "temperature": 0, "top_p": 0.9, "top_k": 5, "stop": ["x"], "stop_token_ids": [3],
        "ignore_eos": True, "cache_salt": "0a", "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "repetition_penalty": 1.2, "min_tokens": 2, "logit_bias": {7: -1.0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("openai", {"top_k", "stop_token_ids", "ignore_eos", "min_p", "repetition_penalty", "min_tokens"}),
        ("tgi", set(ALL_OPTIONS) - {"top_p", "seed", "stop", "frequency_penalty"}),
        (
            "lmdeploy",
            {"stop_token_ids", "presence_penalty", "frequency_penalty", "min_tokens", "logit_bias"},
        ),
        ("vllm", set()),
        ("sglang", set()),
    ],
)
def test_what_a_kind_cannot_honour_is_refused_by_name(generation: Make, kind: str, refused: set[str]) -> None:
    for field, value in ALL_OPTIONS.items():
        asked = generation(sampling=Sampling(max_tokens=9, **{field: value}))
        foreseen = refusal(KINDS[kind], asked.prompt, asked.sampling)
        assert (foreseen is not None) == (field in refused)
        if field in refused:
            with pytest.raises(Rejected, match=f"^{field}: .*{kind}") as caught:
                compose(KINDS[kind], "big", asked)
            assert caught.value.code == "unsupported_parameter"
        else:
            _, body = compose(KINDS[kind], "big", asked)
            assert body[field] == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize(("kind", "top_k"), [("vllm", -1), ("sglang", -1), ("lmdeploy", 0), ("openai", None)])
def test_top_k_is_said_even_when_it_is_off(generation: Make, kind: str, top_k: int | None) -> None:
    """The server's own default may be another."""
    _, body = compose(KINDS[kind], "big", generation())
    assert body.get("top_k") == top_k and ("top_k" in body) == (top_k is not None)


def test_tgi_refuses_a_full_top_p(generation: Make) -> None:
    assert "top_p" not in compose(KINDS["tgi"], "big", generation())[1]
    assert compose(KINDS["openai"], "big", generation())[1]["top_p"] == 1.0


@pytest.mark.parametrize("kind", ["vllm", "sglang", "lmdeploy"])
def test_what_models_bring_along_is_said_even_when_it_is_off(generation: Make, kind: str) -> None:
    _, body = compose(KINDS[kind], "big", generation())
    assert (body["repetition_penalty"], body["min_p"]) == (1.0, 0.0)


@pytest.mark.parametrize("kind", ["openai", "tgi", "lmdeploy"])
def test_the_salt_stays_with_those_who_know_it(generation: Make, kind: str) -> None:
    assert "cache_salt" not in compose(KINDS[kind], "big", generation(salt=b"secret"))[1]


def test_the_messages_of_a_conversation(generation: Make) -> None:
    prompt = Prompt(messages=(ChatMessage("system", "Be kind"), ChatMessage("user", "Hi", name="Ann")))
    path, body = compose(KINDS["openai"], "big", msgspec.structs.replace(generation(), prompt=prompt))
    assert path == "/chat/completions"
    assert body["messages"] == [
        {"role": "system", "content": "Be kind"},
        {"role": "user", "content": "Hi", "name": "Ann"},
    ]
    assert b"null" not in msgspec.json.encode(body)


def test_options_of_the_chat_template_are_passed_on_where_servers_know_them(generation: Make) -> None:
    asking = asked(generation, options={"enable_thinking": False})
    for kind in ("vllm", "sglang"):
        assert compose(KINDS[kind], "big", asking)[1]["chat_template_kwargs"] == {"enable_thinking": False}
    for kind in ("lmdeploy", "tgi", "openai"):
        with pytest.raises(Rejected, match="^chat_template_kwargs: "):
            compose(KINDS[kind], "big", asking)


def test_a_seed_of_64_bits_fits_into_theirs(generation: Make) -> None:
    _, body = compose(KINDS["vllm"], "big", generation(sampling=Sampling(max_tokens=1, seed=2**64 - 1)))
    assert body["seed"] == 2**63 - 1


TOOL = Tool("add", "Adds", {"type": "object"}, strict=True)
CALLED = ChatMessage("assistant", "", tool_calls=(ToolCall("call_1", "add", "{}"),))
RESULT = ChatMessage("tool", "3", tool_call_id="call_1")


def asked(make: Make, *messages: ChatMessage, **fields: Any) -> Generation:
    prompt = Prompt(messages=(ChatMessage("user", "Hi"), *messages), **fields)
    return msgspec.structs.replace(make(), prompt=prompt)


def test_tools_calls_and_results(generation: Make) -> None:
    _, body = compose(KINDS["vllm"], "big", asked(generation, CALLED, RESULT, tools=(TOOL, Tool("now"))))
    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Adds",
                "parameters": {"type": "object"},
                "strict": True,
            },
        },
        {"type": "function", "function": {"name": "now"}},
    ]
    assert body["messages"] == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "content": "3", "tool_call_id": "call_1"},
    ]
    assert "tool_choice" not in body and "parallel_tool_calls" not in body


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (ToolChoice("none"), {"tool_choice": "none"}),
        (ToolChoice("required"), {"tool_choice": "required"}),
        (
            ToolChoice("required", "add"),
            {"tool_choice": {"type": "function", "function": {"name": "add"}}},
        ),
        (ToolChoice(parallel=False), {"parallel_tool_calls": False}),
    ],
)
def test_the_choice_is_said_where_it_is_not_the_default(
    generation: Make, choice: ToolChoice, said: dict[str, Any]
) -> None:
    _, body = compose(KINDS["openai"], "big", asked(generation, tools=(TOOL,), tool_choice=choice))
    assert body | said == body
    assert not any(field in body for field in {"tool_choice", "parallel_tool_calls"} - set(said))


def test_tools_that_are_not_allowed_are_not_told_of(generation: Make) -> None:
    """Servers know no choice of several."""
    choice = ToolChoice("required", allowed=("now",))
    _, body = compose(KINDS["vllm"], "big", asked(generation, tools=(TOOL, Tool("now")), tool_choice=choice))
    assert body["tools"] == [{"type": "function", "function": {"name": "now"}}]
    assert body["tool_choice"] == "required"


def test_tgi_is_offered_no_tools(generation: Make) -> None:
    for generating in (asked(generation, tools=(TOOL,)), asked(generation, CALLED, RESULT)):
        with pytest.raises(Rejected, match="^tools: .*tgi"):
            compose(KINDS["tgi"], "big", generating)

"""Log-probabilities of remote servers, asked for and read; what is odd there costs the judgement, never the answer."""

import json
from typing import Any

import msgspec
import pytest

from backends.backend import Generation, Prompt, Sampling, Signal
from backends.prompt import ChatMessage
from backends.remote_reply import Reply
from backends.remote_request import KINDS, compose
from backends.remote_signals import read
from backends.sse import Event

CHAT = Prompt(messages=(ChatMessage(role="user", content="Hi"),))


def generation(prompt: Prompt, **sampling: Any) -> Generation:
    return Generation(id="g", prompt=prompt, ids=None, sampling=Sampling(max_tokens=5, **sampling))


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_they_are_asked_for_only_where_somebody_judges(kind: Any) -> None:
    _, quiet = compose(kind, "m", generation(CHAT))
    assert "logprobs" not in quiet
    _, chat = compose(kind, "m", generation(CHAT, signals=True))
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 2)
    _, completion = compose(kind, "m", generation(Prompt(text="Once"), signals=True))
    assert completion["logprobs"] == 2 and "top_logprobs" not in completion


def test_of_a_chat() -> None:
    told = {"content": [
        {"token": "a", "logprob": -0.1, "top_logprobs": [{"logprob": -0.1}, {"logprob": -2.6}]},
        {"token": "b", "logprob": -3.0, "top_logprobs": [{"logprob": -9999.0}]},
        {"token": "c", "logprob": -1.0},
    ]}  # fmt: skip
    assert read(json.dumps(told).encode()) == (
        Signal(-0.1, 2.5, None), Signal(-3.0, None, None), Signal(-1.0, None, None),
    )  # fmt: skip


def test_of_a_completion() -> None:
    told = {"token_logprobs": [None, -0.5, -1.0], "top_logprobs": [None, {"a": -0.5, "b": -1.0}]}
    assert read(json.dumps(told).encode()) == (Signal(-0.5, 0.5, None), Signal(-1.0, None, None))


@pytest.mark.parametrize("told", [b"", b"null", b"{}", b"[]", b'{"content": 3}', b'{"content": [{"x": 1}]}'])
def test_what_is_odd_is_none(told: bytes) -> None:
    assert read(told) == ()


def test_they_come_with_their_text() -> None:
    chunk = {"choices": [{"delta": {"content": "Hi"}, "logprobs": {"content": [{"logprob": -0.5}]}}]}
    event = Event(json.dumps(chunk).encode())
    delta = Reply("70b/0", generation(CHAT, signals=True)).take(event)
    assert delta is not None and delta.text == "Hi" and delta.signals == (Signal(-0.5, None, None),)
    unasked = Reply("70b/0", generation(CHAT)).take(event)
    assert unasked is not None and unasked.signals == ()


def test_a_chunk_of_nothing_else_is_a_delta_too() -> None:
    """Servers that hold text back until a character is whole send such."""
    chunk = {"choices": [{"text": "", "logprobs": {"token_logprobs": [-0.5]}}]}
    delta = Reply("70b/0", generation(Prompt(text="x"), signals=True)).take(Event(msgspec.json.encode(chunk)))
    assert delta is not None and len(delta.signals) == 1

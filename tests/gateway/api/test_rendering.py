"""Choices, logprobs and echoes in OpenAI's shapes, from deltas made by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from backends.backend import CallPiece, Delta, TokenScore, Usage
from gateway.api.chat import ChatRendering
from gateway.api.completions import CompletionBody, CompletionRendering, decode
from gateway.api.dialect import Ending, Rendering
from gateway.request import Answer, Route

USAGE = Usage(prompt_tokens=3, completion_tokens=6, cached_tokens=1)
TOLD = {
    "prompt_tokens": 3,
    "completion_tokens": 6,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 1},
}


def score(token: str | bytes, logprob: float | None = -0.5, *top: TokenScore) -> TokenScore:
    """Of text or bytes, or of a control token <|so|>."""
    data = token if isinstance(token, bytes) else token.encode()
    data = b"" if data.startswith(b"<|") else data
    text = token if isinstance(token, str) else token.decode(errors="replace")
    return TokenScore(text=text, data=data, logprob=logprob, top=top)


SMILE = "🙂".encode()
# Two answers that take turns; the second ends last.
DELTAS = (
    Delta(index=0, text="é", scores=(score("é"),)),
    Delta(index=1, text="No", scores=(score("No", -2.0, score("Yes", -0.1), score("<|end|>", -3.0)),)),
    Delta(index=0, text="🙂!", scores=(score(SMILE[:3]), score(SMILE[3:]), score("!")), finish="stop"),
    Delta(index=1, text="pe", scores=(score("pe"),), finish="length", usage=USAGE),
)
ENDING = Ending(index=1, finish="length", usage=USAGE)


@pytest.fixture
def answer() -> Answer:
    route = Route(order=("7b",), reason="7b: requested", assessment=None)
    return Answer(id="r", created=1, tier="7b", route=route, session=None, deltas=None)  # type: ignore[arg-type]


@pytest.fixture
def play(answer: Answer) -> Callable[..., list[dict[str, Any]]]:
    """The choices of all chunks of a stream, in order."""

    def choices(rendering: Rendering, deltas: Sequence[Delta], ending: Ending) -> list[dict[str, Any]]:
        chunks = [*rendering.opening(answer)]
        for delta in deltas:
            chunks += rendering.piece(delta)
        chunks += rendering.closing(ending)
        return [choice for chunk in chunks for choice in chunk["choices"]]

    return choices


def bare(deltas: Sequence[Delta]) -> list[Delta]:
    return [Delta(index=each.index, text=each.text, finish=each.finish, usage=each.usage) for each in deltas]


def test_a_chat_of_two_choices(answer: Answer) -> None:
    whole = ChatRendering(2, False, scored=False).whole(answer, bare(DELTAS), ENDING)
    assert whole["usage"] == TOLD
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["é🙂!", "Nope"]
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop", "length"]
    assert [choice["logprobs"] for choice in whole["choices"]] == [None, None]


TEXTS = ["é", " and so on", '"quoted" \\ broken\n\r\t', "\0", "\0\0", "\u2028\x7f", "🙂", "</script>"]


@pytest.mark.parametrize("include_usage", [False, True])
def test_what_is_ready_is_what_would_have_been_made(answer: Answer, include_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    body = {"model": "auto", "prompt": ["one", "two"], "echo": True, "stream": True, **options}
    renderings: list[Rendering] = [
        ChatRendering(2, include_usage, scored=False),
        ChatRendering(2, include_usage, scored=True, tools=True),
        CompletionRendering(decode(msgspec.json.encode(body))),
    ]
    for rendering in renderings:
        rendering.opening(replace(answer, spelled=("one", "two")))
        for number, text in enumerate(TEXTS):
            delta = Delta(index=number % 2, text=text, tokens=1)
            [chunk] = rendering.piece(delta)
            assert rendering.ready(delta) == msgspec.json.encode(chunk)


@pytest.mark.parametrize(
    "delta",
    [
        Delta(text=""),
        Delta(text="x", scores=(score("x"),)),
        Delta(text="x", prompt=(score("x"),)),
        Delta(text="x", calls=(CallPiece(index=0, id="a", name="f", arguments="{}"),)),
        Delta(text="x", finish="stop"),
        Delta(text="x", finish="stop", usage=USAGE),
        Delta(finish="stop", usage=USAGE),
    ],
)
def test_what_is_more_than_text_is_not_ready(answer: Answer, delta: Delta) -> None:
    rendering = ChatRendering(1, False, scored=True)
    rendering.opening(answer)
    assert rendering.ready(delta) is None


def test_a_stream_of_two_choices(play: Callable[..., list[dict[str, Any]]]) -> None:
    choices = play(ChatRendering(2, True, scored=False), bare(DELTAS), ENDING)
    assert [(each["index"], each["delta"].get("content"), each["finish_reason"]) for each in choices] == [
        (0, "", None), (1, "", None), (0, "é", None), (1, "No", None), (0, "🙂!", None), (0, None, "stop"),
        (1, "pe", None), (1, None, "length"),
    ]  # fmt: skip


def test_the_logprobs_of_a_chat(answer: Answer, play: Callable[..., list[dict[str, Any]]]) -> None:
    whole = ChatRendering(2, False, scored=True).whole(answer, DELTAS, ENDING)
    first, second = (choice["logprobs"]["content"] for choice in whole["choices"])
    assert b"".join(bytes(token["bytes"]) for token in first).decode() == "é🙂!"
    assert [token["token"] for token in first] == [
        "é",
        "\N{REPLACEMENT CHARACTER}",
        "\N{REPLACEMENT CHARACTER}",
        "!",
    ]
    assert second[0]["top_logprobs"] == [
        {"token": "Yes", "logprob": -0.1, "bytes": [89, 101, 115]},
        {"token": "<|end|>", "logprob": -3.0, "bytes": None},
    ]
    streamed = play(ChatRendering(2, False, scored=True), DELTAS, ENDING)
    told = [
        t for each in streamed if each["index"] == 0 and each["logprobs"] for t in each["logprobs"]["content"]
    ]
    assert told == first


def test_an_answer_without_tokens_has_empty_logprobs(answer: Answer) -> None:
    """Not null: they were asked for."""
    only = [Delta(finish="stop", usage=USAGE)]
    whole = ChatRendering(1, False, scored=True).whole(answer, only, Ending(finish="stop", usage=USAGE))
    assert whole["choices"][0]["logprobs"] == {"content": [], "refusal": None}


def completion(**fields: Any) -> CompletionRendering:
    return CompletionRendering(CompletionBody(model="7b", **fields))


def test_the_logprobs_of_a_completion(answer: Answer) -> None:
    whole = completion(prompt="x", n=2, logprobs=2).whole(answer, DELTAS, ENDING)
    first, second = (choice["logprobs"] for choice in whole["choices"])
    assert first["text_offset"] == [0, 1, 1, 2]  # the smile is one character of two tokens
    assert first["token_logprobs"] == [-0.5] * 4
    assert second["top_logprobs"][0] == {"Yes": -0.1, "<|end|>": -3.0, "No": -2.0}
    assert second["tokens"] == ["No", "pe"]


def test_the_likeliest_of_tokens_that_read_the_same_counts() -> None:
    """llama-cpp-python#453 mixed them up."""
    same = score(b"\xf0", -3.0, score(b"\x9f", -0.2), score(b"\x99", -1.0))
    told = completion(prompt="x", logprobs=2).more(Delta(scores=(same,)))["logprobs"]
    assert told["top_logprobs"] == [{"\N{REPLACEMENT CHARACTER}": -0.2}]
    assert told["token_logprobs"] == [-3.0]


PROMPT = (score("<|begin|>", None), score("a"), score("<|x|>"), score("é"))


@pytest.mark.parametrize("n", [1, 2])
def test_an_echo_with_logprobs(answer: Answer, play: Callable[..., list[dict[str, Any]]], n: int) -> None:
    """A control token that the client has written is part of the text, one that the tokenizer adds is not."""
    fields: Any = {"prompt": "a<|x|>é", "logprobs": 1, "echo": True, "n": n}
    deltas = [Delta(prompt=PROMPT), *(delta for delta in DELTAS if n == 2 or not delta.index)]
    ending = Ending(index=n - 1, finish="stop", usage=USAGE)
    whole = completion(**fields).whole(answer, deltas, ending)
    assert len(whole["choices"]) == n
    for choice, said in zip(whole["choices"], ("é🙂!", "Nope"), strict=False):
        assert choice["text"] == "a<|x|>é" + said
        logprobs = choice["logprobs"]
        assert logprobs["tokens"][:4] == ["<|begin|>", "a", "<|x|>", "é"]
        assert logprobs["text_offset"][:5] == [0, 0, 1, 6, 7]
        assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
        streamed = [
            each for each in play(completion(**fields), deltas, ending) if each["index"] == choice["index"]
        ]
        assert "".join(each["text"] for each in streamed) == choice["text"]
        offsets = [at for each in streamed if each["logprobs"] for at in each["logprobs"]["text_offset"]]
        assert offsets == logprobs["text_offset"]


def test_an_echo_alone(answer: Answer, play: Callable[..., list[dict[str, Any]]]) -> None:
    deltas, ending = [Delta(finish="length", usage=USAGE)], Ending(finish="length", usage=USAGE)
    fields: Any = {"prompt": "Once", "echo": True, "max_tokens": 0}
    [choice] = completion(**fields).whole(answer, deltas, ending)["choices"]
    assert choice == {"index": 0, "text": "Once", "logprobs": None, "finish_reason": "length"}
    streamed = play(completion(**fields), deltas, ending)
    assert [(each["text"], each["finish_reason"]) for each in streamed] == [("Once", None), ("", "length")]

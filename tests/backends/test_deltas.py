"""Outputs of an engine as deltas: several answers, and scores that stay with their text."""

from pathlib import Path

import pytest

from backends.backend import DeadlineExceeded, Delta, Rejected, TokenScore, Unavailable
from backends.deltas import DeltaReader
from backends.tokenizer import Tokenizer
from backends.tools.calls import joined
from backends.tools.formats import FORMATS
from backends.tools.parser import CallParser
from backends.wire import Output, Refused, Sampling, Score, Signal, Timings


@pytest.fixture
def tokenizer(byte_model: Path) -> Tokenizer:
    """One token a byte."""
    return Tokenizer(byte_model)


def reader(tokenizer: Tokenizer, prompt: str = "ab", **sampling: object) -> DeltaReader:
    ids = list(prompt.encode())
    return DeltaReader("7b/0", ids, Sampling(max_tokens=99, **sampling), tokenizer)  # type: ignore[arg-type]


def output(data: bytes, index: int = 0, scored: bool = False, **fields: object) -> Output:
    """The scores count down, so that each tells where it belongs."""
    scores = [Score(-float(byte), [(byte, -1.0), (120, -2.0)]) for byte in data] if scored else []
    return Output(id="g", index=index, ids=list(data), scores=scores, **fields)  # type: ignore[arg-type]


def read(reader: DeltaReader, *outputs: Output) -> list[Delta]:
    return [delta for each in outputs if (delta := reader.take(each)) is not None]


def said(deltas: list[Delta]) -> bytes:
    return b"".join(score.data for delta in deltas for score in delta.scores)


def test_scores_wait_for_the_whole_character(tokenizer: Tokenizer) -> None:
    pieces = [output(bytes([byte]), scored=True) for byte in "ž!".encode()]
    deltas = read(reader(tokenizer, logprobs=2), *pieces)
    assert [(delta.text, len(delta.scores), delta.tokens) for delta in deltas] == [("ž", 2, 2), ("!", 1, 1)]
    first = deltas[0].scores[0]
    assert (first.text, first.data, first.logprob) == ("\N{REPLACEMENT CHARACTER}", b"\xc5", -197.0)
    assert first.top[1] == TokenScore(text="x", data=b"x", logprob=-2.0)


@pytest.mark.parametrize(
    ("data", "trim", "finish", "left"),
    [
        (b"said END", 3, "stop", b"said "),
        (b"said ENDing", 6, "stop", b"said "),
        (b"said", 0, "length", b"said"),
        (b"said\n", 1, "stop", b"said"),  # an end token with bytes
        (b"END", 3, "stop", b""),
    ],
)
def test_what_is_cut_from_the_text_is_cut_from_the_scores(
    tokenizer: Tokenizer, data: bytes, trim: int, finish: str, left: bytes
) -> None:
    deltas = read(
        reader(tokenizer, logprobs=0, stop=("END",)), output(data, scored=True, trim=trim, finish=finish)
    )
    assert said(deltas) == left == deltas[0].text.encode()
    assert deltas[0].usage is not None
    assert deltas[0].usage.completion_tokens == len(data)


def test_several_answers_end_one_by_one_and_the_last_tells_what_was_used(tokenizer: Tokenizer) -> None:
    several = reader(tokenizer, n=3)
    early = Timings(arrived=1.0, scheduled=2.0, first_token=3.0, finished=4.0)
    late = Timings(arrived=1.0, scheduled=5.0, first_token=6.0, finished=9.0)
    deltas = read(
        several,
        output(b"a", cached=0),
        output(b"b", 2, cached=64),
        output(b"", 0, finish="stop", timings=early),
        output("ž".encode()[:1], 1),
        output("ž".encode()[1:], 1, finish="length", timings=late, cached=64),
        output(b"c", 2, finish="length", timings=late, cached=64),
    )
    assert [(delta.index, delta.text) for delta in deltas] == [
        (0, "a"),
        (2, "b"),
        (0, ""),
        (1, "ž"),
        (2, "c"),
    ]
    assert [delta.finish for delta in deltas] == [None, None, "stop", "length", "length"]
    assert [delta.usage for delta in deltas[:-1]] == [None] * 4
    last = deltas[-1]
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.cached_tokens) == (2, 5, 0)
    assert last.timings == Timings(arrived=1.0, scheduled=2.0, first_token=3.0, finished=9.0)
    assert several.ended


def test_the_failure_of_one_answer_is_that_of_all(tokenizer: Tokenizer) -> None:
    several = reader(tokenizer, n=2)
    with pytest.raises(Unavailable):
        several.take(output(b"", 1, finish="error", error="why"))
    assert not several.ended  # so that the others are aborted
    with pytest.raises(Rejected, match="^grammar: too complex") as error:
        reader(tokenizer).take(output(b"", finish="error", fault="sampling.grammar: too complex"))
    assert not error.value.retryable
    with pytest.raises(Rejected, match="^n: 9"):
        several.take(Refused(id="g", code="invalid", message="sampling.n: 9 is not from 1 to 8"))
    assert several.ended


def test_the_prompt_comes_first_and_once(tokenizer: Tokenizer) -> None:
    scores = [Score(-1.0), Score(-2.0)]
    echoing = reader(tokenizer, "abc", logprobs=0, prompt_logprobs=True, n=2)
    deltas = read(
        echoing,
        Output(id="g", prompt=scores),
        output(b"x", 1, scored=True),
        output(b"y", 0, scored=True, finish="length"),
        output(b"z", 1, scored=True, finish="length"),
    )
    assert [score.logprob for score in deltas[0].prompt] == [None, -1.0, -2.0]
    assert [score.text for score in deltas[0].prompt] == ["a", "b", "c"]
    assert [delta.prompt for delta in deltas[1:]] == [()] * 3


def test_a_prompt_without_an_answer(tokenizer: Tokenizer) -> None:
    [only] = read(reader(tokenizer, "a", logprobs=0, prompt_logprobs=True), Output(id="g", finish="length"))
    assert (only.text, only.finish, [score.logprob for score in only.prompt]) == ("", "length", [None])
    assert only.usage is not None and only.usage.completion_tokens == 0


CALL = b'<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def calling(tokenizer: Tokenizer, **sampling: object) -> DeltaReader:
    settings = Sampling(max_tokens=99, **sampling)  # type: ignore[arg-type]
    return DeltaReader("7b/0", [1], settings, tokenizer, lambda: CallParser(FORMATS[0]))


def test_calls_are_told_from_text_and_an_answer_with_one_waits_for_results(tokenizer: Tokenizer) -> None:
    pieces = [output(bytes([byte]), scored=True) for byte in b"Yes.\n" + CALL]
    deltas = read(calling(tokenizer, logprobs=0), *pieces, output(b"", finish="stop"))
    assert "".join(delta.text for delta in deltas) == "Yes."
    (call,) = joined(piece for delta in deltas for piece in delta.calls)
    assert (call.name, call.arguments) == ("add", '{"a": 1}')
    assert all(delta.text or delta.calls for delta in deltas[:-1])
    assert deltas[-1].finish == "tool_calls" and deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == sum(delta.tokens for delta in deltas) == 5 + len(CALL)
    assert said(deltas) == b"Yes.\n" + CALL


def test_a_call_that_is_cut_off_has_not_ended_the_answer_by_itself(tokenizer: Tokenizer) -> None:
    deltas = read(calling(tokenizer), output(CALL[:-20]), output(b"x", finish="length"))
    assert deltas[-1].finish == "length"


@pytest.mark.parametrize(("written", "finish"), [(CALL[:-20], "stop"), (CALL + b"\n", "tool_calls")])
def test_a_stop_string_in_a_call_leaves_no_call_to_be_answered(
    tokenizer: Tokenizer, written: bytes, finish: str
) -> None:
    """Nor does it change what a whole call before it asks for."""
    deltas = read(calling(tokenizer, stop=("END",)), output(written), output(b"END", finish="stop", trim=3))
    assert (deltas[-1].finish, deltas[-1].stopped_by) == (finish, "END")


def test_what_was_no_call_comes_out_in_the_end(tokenizer: Tokenizer) -> None:
    deltas = read(calling(tokenizer), output(b"<tool_call>"), output(b" is", finish="stop"))
    assert [(delta.text, delta.finish) for delta in deltas] == [("<tool_call> is", "stop")]


def test_each_answer_has_calls_of_its_own(tokenizer: Tokenizer) -> None:
    halves = [output(CALL[:30], index) for index in (0, 1)]
    rest = [output(CALL[30:], index, finish="stop") for index in (1, 0)]
    deltas = read(calling(tokenizer, n=2), *halves, *rest)
    for index in (0, 1):
        (call,) = joined(piece for delta in deltas if delta.index == index for piece in delta.calls)
        assert (call.name, call.arguments) == ("add", '{"a": 1}')
    assert [delta.finish for delta in deltas if delta.finish] == ["tool_calls", "tool_calls"]


def test_signals_wait_for_no_character_and_what_is_cached_comes_along(tokenizer: Tokenizer) -> None:
    """And they change neither the text nor where its scores are."""
    pieces = [
        output(bytes([byte]), scored=True, signals=[Signal(-float(byte), 1.0, 2.0)], cached=1)
        for byte in "ž!".encode()
    ]
    deltas = read(reader(tokenizer, logprobs=2, signals=True), *pieces)
    assert [(delta.text, len(delta.scores), delta.tokens) for delta in deltas] == [
        ("", 0, 0), ("ž", 2, 2), ("!", 1, 1),
    ]  # fmt: skip
    assert [len(delta.signals) for delta in deltas] == [1, 1, 1]
    assert {delta.cached for delta in deltas} == {1}


def test_who_runs_out_of_time_is_told_how_far_it_got(tokenizer: Tokenizer) -> None:
    times = Timings(arrived=1.0, scheduled=2.0, finished=9.0)
    with pytest.raises(DeadlineExceeded) as late:
        reader(tokenizer).take(output(b"", finish="deadline", timings=times))
    assert late.value.timings == times

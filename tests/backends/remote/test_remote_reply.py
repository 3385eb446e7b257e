"""Chunks to deltas, stop strings cut, errors told apart; no socket."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.backend import BackendError, CallPiece, Generation, Overloaded, Rejected, Sampling, Unavailable
from backends.remote_reply import Reply, StopCut, failure, in_band
from backends.sse import Event

Make = Callable[..., Generation]


def event(chunk: object) -> Event:
    return Event(json.dumps(chunk).encode())


def finished(choice: dict[str, Any]) -> Event:
    return event({"choices": [choice]})


@pytest.mark.parametrize(
    ("word", "finish"),
    [("stop", "stop"), ("length", "length"), ("eos_token", "stop"), ("stop_sequence", "stop")],
)
def test_finish_reasons(generation: Make, word: str, finish: str) -> None:
    reply = Reply("70b/0", generation("Once"))
    assert reply.take(finished({"text": "x", "finish_reason": word})) is not None
    assert reply.finished and reply.last().finish == finish


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("content_filter", Rejected),
        ("abort", Unavailable),
        ("error", Unavailable),
        ("function_call", Unavailable),
    ],
)
def test_a_reason_that_is_no_good_end_is_an_error(
    generation: Make, word: str, kind: type[BackendError]
) -> None:
    with pytest.raises(kind):
        next(Reply("70b/0", generation()).deltas([finished({"delta": {}, "finish_reason": word})]))


def test_what_a_filter_lets_through_comes_before_its_error(generation: Make) -> None:
    sampling = Sampling(max_tokens=9, stop=("END",))
    deltas = Reply("70b/0", generation("Once", sampling=sampling), repeats_stop=True).deltas(
        [
            event({"choices": [{"text": "the"}]}),
            finished({"text": " last E", "finish_reason": "content_filter"}),
            finished({"text": "never", "finish_reason": "stop"}),
        ]
    )
    assert [next(deltas).text for _ in range(2)] == ["the", " last E"]
    with pytest.raises(Rejected) as caught:
        next(deltas)
    assert caught.value.code == "content_filter"


def test_what_a_server_breaks_off_is_left_to_another(generation: Make) -> None:
    """Who has seen no text yet can be answered by it."""
    broken = finished({"text": "half", "finish_reason": "abort"})
    with pytest.raises(Unavailable):
        next(Reply("70b/0", generation("Once")).deltas([broken]))


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": None}, "finish_reason": None}], "usage": None},
        {"choices": [], "prompt_filter_results": []},
        {"choices": [{"delta": None}]},
    ],
)
def test_chunks_without_text_give_nothing(generation: Make, chunk: object) -> None:
    assert Reply("70b/0", generation()).take(event(chunk)) is None


def test_usage_may_come_with_every_chunk_and_the_last_one_counts(generation: Make) -> None:
    reply = Reply("70b/0", generation())
    for tokens in (1, 2):
        reply.take(
            event(
                {
                    "choices": [{"delta": {"content": "x"}}],
                    "usage": {"prompt_tokens": 5, "completion_tokens": tokens},
                }
            )
        )
    reply.take(event({"choices": [{"delta": {}, "finish_reason": "stop"}]}))
    usage = reply.last().usage
    assert usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (5, 2)


@pytest.mark.parametrize("count", [-1, "many", 1.5])
def test_counts_that_are_none(generation: Make, count: object) -> None:
    with pytest.raises(Unavailable) as caught:
        Reply("70b/0", generation()).take(event({"choices": [], "usage": {"prompt_tokens": count}}))
    assert caught.value.code == "upstream_protocol"


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_a_text_is_cut_at_its_first_stop_string_however_it_comes(pieces: list[str], stop: list[str]) -> None:
    cut, said = StopCut(tuple(stop)), ""
    for piece in pieces:
        said += cut.push(piece)
        if cut.found:
            break
    said += "" if cut.found else cut.rest()
    whole = "".join(pieces)
    assert (cut.found is not None) == any(stop_string in whole for stop_string in stop)
    assert whole.startswith(said) and not any(stop_string in said for stop_string in stop)
    ended_by_stop = any(whole.startswith(stop_string, len(said)) for stop_string in stop)
    assert ended_by_stop if cut.found else said == whole


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    cut = StopCut(("\n\n", "END"))
    assert [cut.push(piece) for piece in ("a\n", "b", "E", "N", "x", "\n")] == ["a", "\nb", "", "", "ENx", ""]
    assert cut.rest() == "\n"


def test_what_was_held_back_comes_out_when_the_answer_ends_otherwise(generation: Make) -> None:
    reply = Reply(
        "70b/0", generation("Once", sampling=Sampling(max_tokens=2, stop=("END",))), repeats_stop=True
    )
    assert reply.take(finished({"text": "E"})) is None
    delta = reply.take(finished({"text": "N", "finish_reason": "length"}))
    assert delta is not None and delta.text == "EN" and reply.last().finish == "length"


TOO_LONG = [
    {"error": {"message": "x", "code": "context_length_exceeded"}},
    {"object": "error", "message": "This model's maximum context length is 4096 tokens. However, …", "code": 400},
    {"error": {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."}},
    {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096", "error_type": "validation"},
]  # fmt: skip


@pytest.mark.parametrize("body", TOO_LONG)
def test_every_server_s_way_to_say_that_a_prompt_is_too_long(body: object) -> None:
    data = json.dumps(body).encode()
    for error in (failure("70b/0", 400, data, {}), failure("70b/0", 422, data, {}), in_band("70b/0", data)):
        assert isinstance(error, Rejected) and error.code == "context_length_exceeded"


def test_a_refusal_names_the_field_if_that_is_a_name() -> None:
    named = failure("70b/0", 400, b'{"error": {"message": "m", "param": "logit_bias[3]"}}', {})
    strange = failure("70b/0", 400, b'{"error": {"param": "http://10.0.0.7/ Say hello"}}', {})
    assert named.message.startswith("logit_bias[3]: ")
    assert "10.0.0.7" not in strange.message


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"\xff", b"[]", b'"x"', b"[" * 100_000, b'{"error": null}', b"7"]
)
def test_a_body_may_be_anything(body: bytes) -> None:
    assert isinstance(failure("70b/0", 400, body, {}), Rejected)
    assert isinstance(failure("70b/0", 502, body, {}), Unavailable)
    assert isinstance(in_band("70b/0", body), Unavailable)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3),
        ({"retry-after": "3", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "999999"}, 3600),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    error = failure("70b/0", 429, b"", headers)
    assert isinstance(error, Overloaded) and error.retry_after == seconds


@pytest.mark.parametrize(
    ("choice", "stopped_by"),
    [
        ({"stop_reason": "END"}, "END"),
        ({"stop_reason": None}, None),
        ({"stop_reason": 7}, None),
        ({"stop_reason": "another"}, None),
        ({"stop_reason": ["END"]}, None),
        ({"matched_stop": "END"}, "END"),
        ({"matched_stop": 2}, None),
        ({}, None),
    ],
)
def test_the_stop_string_is_told_where_the_server_tells_it(
    generation: Make, choice: dict[str, Any], stopped_by: str | None
) -> None:
    reply = Reply("70b/0", generation(sampling=Sampling(max_tokens=5, temperature=0, seed=1, stop=("END",))))
    reply.take(finished({"text": "x", "finish_reason": "stop", **choice}))
    assert reply.last().stopped_by == stopped_by


def test_the_stop_string_is_known_where_it_is_cut_here(generation: Make) -> None:
    sampling = Sampling(max_tokens=5, temperature=0, seed=1, stop=("END", "N"))
    reply = Reply("70b/0", generation(sampling=sampling), repeats_stop=True)
    reply.take(event({"choices": [{"text": "xE"}]}))
    reply.take(finished({"text": "ND", "finish_reason": "stop_sequence"}))
    assert reply.last().stopped_by == "END"


def call(arguments: str, **fields: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": "add"} if "id" in fields else {})}
    return {"delta": {"content": None, "tool_calls": [{"index": 0, "function": function, **fields}]}}


@pytest.mark.parametrize("word", ["tool_calls", "stop"])
def test_calls_wait_for_their_results_whatever_the_server_calls_that(generation: Make, word: str) -> None:
    reply = Reply("70b/0", generation())
    first = reply.take(event({"choices": [call("", id="call_1", type="function")]}))
    second = reply.take(event({"choices": [call('{"a": 1}')]}))
    assert first is not None and second is not None and reply.heard
    assert [piece.name for piece in first.calls] == ["add"]
    assert second.calls == (CallPiece(index=0, arguments='{"a": 1}'),)
    assert reply.take(event({"choices": [{"delta": {}, "finish_reason": word}]})) is None
    last = reply.last()
    assert last.finish == "tool_calls" and last.usage is not None and last.usage.completion_tokens > 1


def test_a_call_that_is_cut_off_is_no_call_to_wait_for(generation: Make) -> None:
    reply = Reply("70b/0", generation())
    reply.take(event({"choices": [call('{"a', id="call_1")]}))
    reply.take(event({"choices": [{"delta": {}, "finish_reason": "length"}]}))
    assert reply.last().finish == "length"


def test_an_answer_without_calls_has_stopped(generation: Make) -> None:
    reply = Reply("70b/0", generation())
    reply.take(event({"choices": [{"delta": {"content": "Hi"}, "finish_reason": "tool_calls"}]}))
    assert reply.last().finish == "stop"

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.wire import (
    Abort,
    Evicted,
    FromEngine,
    Grammar,
    Load,
    Message,
    Output,
    Outputs,
    Refused,
    Sampling,
    Score,
    Snapshot,
    Stored,
    Submit,
    Subscribe,
    Timings,
    ToEngine,
    decode_from_engine,
    decode_to_engine,
    encode,
    socket_path,
)

TO_ENGINE: list[ToEngine] = [
    Submit(
        id="a",
        prompt=[0, 151_935],
        sampling=Sampling(max_tokens=7, seed=2**64 - 1, stop=("ž", "\n"), stop_token_ids=(2,)),
        salt=b"\x00\xff",
        tenant="t",
        session="s",
        weight=0.5,
        traffic="batch",
        priority=-1,
        timeout=0.5,
    ),
    Submit(
        id="b",
        prompt=[1],
        sampling=Sampling(
            max_tokens=0,
            min_p=0.5,
            presence_penalty=-2.0,
            frequency_penalty=2.0,
            repetition_penalty=1.5,
            logit_bias={0: -100.0, 151_935: 0.25},
            min_tokens=3,
            n=8,
            logprobs=0,
            prompt_logprobs=True,
            grammar=Grammar("regex", "[a-ž]+"),
        ),
    ),
    Abort(id="a"),
    Subscribe(keys=True),
]
FROM_ENGINE: list[FromEngine] = [
    Outputs(
        [
            Output(id="a", ids=[1, 2]),
            Output(id="b", finish="stop", trim=3, cached=16, timings=Timings(arrived=1.5, finished=2.5)),
            Output(id="c", finish="error", error="the device is on fire"),
            Output(id="d", finish="error", fault="sampling.grammar: too complex"),
            Output(
                id="d", index=7, ids=[3], scores=[Score(-0.5, [(3, -0.5), (9, -1.25)])], prompt=[Score(-2.0)]
            ),
        ]
    ),
    Refused(id="a", code="overloaded", message="the queue is full"),
    Stored(engine="7b/0", keys=[b"\x00" * 16]),
    Evicted(engine="7b/0", keys=[]),
    Snapshot(engine="7b/0", block_size=16, keys=[b"\xff"]),
    Load(
        engine="7b/0",
        incarnation="1f",
        running=1,
        waiting=2,
        blocks_total=3,
        blocks_free=4,
        blocks_cached=5,
        prompt_tokens=6,
        cached_tokens=7,
        generation_tokens=8,
        prefix_queries=9,
        prefix_hits=10,
        preemptions=11,
        steps=12,
        step_tokens=13,
        step_rows=14,
        finished={"stop": 1},
    ),
]


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
def test_orders_survive_the_wire(message: ToEngine) -> None:
    assert decode_to_engine(encode(message)) == message


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda message: type(message).__name__)
def test_answers_survive_the_wire(message: FromEngine) -> None:
    assert decode_from_engine(encode(message)) == message


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda message: type(message).__name__)
def test_an_engine_takes_orders_only(message: Message) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_to_engine(encode(message))


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
def test_unknown_fields_are_refused_by_name(message: ToEngine) -> None:
    fields = msgspec.msgpack.decode(encode(message)) | {"surprise": 1}
    with pytest.raises(msgspec.ValidationError, match="surprise"):
        decode_to_engine(msgspec.msgpack.encode(fields))


@given(st.binary())
def test_bytes_decode_or_raise_what_is_documented(data: bytes) -> None:
    for decode in (decode_to_engine, decode_from_engine):
        try:
            decode(data)
        except (msgspec.ValidationError, msgspec.DecodeError):
            continue


def test_an_ordinary_output_is_small() -> None:
    """One goes out per token; fields that hold their default stay at home."""
    assert len(encode(Outputs([Output(id="0" * 32, ids=[151_935])]))) < 80


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("relative/path", "must be absolute"),
        ("@abstract", "must be absolute"),
        ("", "must be absolute"),
        ("/" + "x" * 107, "at most 107 bytes"),
        ("/" + "ž" * 54, "at most 107 bytes"),
    ],
)
def test_what_cannot_be_the_path_of_a_socket_is_refused_with_the_reason(path: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        socket_path(path)
    assert socket_path("/" + "x" * 106) == Path("/" + "x" * 106)


def test_what_is_not_asked_for_takes_no_room() -> None:
    """A decode step of one answer, and how to sample it."""
    assert len(encode(Outputs([Output(id="a", ids=[5])]))) < 40
    assert b"scores" not in encode(Outputs([Output(id="a", ids=[5], cached=16)]))
    assert encode(Submit(id="a", prompt=[1], sampling=Sampling(max_tokens=7))).count(b"penalty") == 0

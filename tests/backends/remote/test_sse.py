"""However a stream is cut into chunks, the same events come out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.sse import Event, EventParser, EventTooLarge

STREAM = (
    b": a comment\n\n"
    b"data: one\n\n"
    b"event: error\r\ndata: two\r\ndata:  three\r\n\r\n"
    b"data:four\r\rid: 7\nretry: 10\ndata\n\n"
    b"event: nothing\n\n"
    b"data: \xe5\xa5\xbd \xe2\x80\xa8 \x0b\x0c\x85\n\n"
    b"data: unfinished\n"
)
EVENTS = [
    Event(b"one"),
    Event(b"two\n three", b"error"),
    Event(b"four"),
    Event(b""),
    Event(b"\xe5\xa5\xbd \xe2\x80\xa8 \x0b\x0c\x85"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    parser = EventParser(1000)
    ends = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]
    assert [event for chunk in chunks for event in parser.feed(chunk)] == EVENTS


def test_byte_by_byte() -> None:
    parser = EventParser(1000)
    assert [e for at in range(len(STREAM)) for e in parser.feed(STREAM[at : at + 1])] == EVENTS


@given(st.lists(st.binary(max_size=20).filter(lambda data: not {10, 13} & set(data)), min_size=1, max_size=5))
def test_what_is_written_is_read(lines: list[bytes]) -> None:
    parser = EventParser(1000)
    written = b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"
    assert parser.feed(written) == [Event(b"\n".join(lines))]


@pytest.mark.parametrize("chunk", [b"data: " + b"x" * 50, b"data: xxxx\n" * 12, b": " + b"x" * 80])
def test_an_event_that_is_too_large_is_refused(chunk: bytes) -> None:
    parser = EventParser(40)
    with pytest.raises(EventTooLarge, match="40 bytes"):
        parser.feed(chunk)


def test_many_small_events_are_not_too_large() -> None:
    assert len(EventParser(40).feed(b"data: x\n\n" * 1000)) == 1000


def test_a_long_line_in_tiny_chunks_takes_linear_time() -> None:
    parser = EventParser(1_000_000)
    for _ in range(200_000):
        assert parser.feed(b"xy") == []

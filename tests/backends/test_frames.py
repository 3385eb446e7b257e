"""Messages cut out of a stream, wherever it was cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.frames import MAX_MESSAGE, FrameError, Frames, framed


def test_a_message_stands_behind_its_length() -> None:
    assert framed(b"abc") == b"\x00\x00\x00\x03abc"
    assert framed(b"") == b"\x00\x00\x00\x00"


@given(
    messages=st.lists(st.binary(max_size=40)), cuts=st.lists(st.integers(1, 30)), rest=st.binary(max_size=3)
)
def test_all_messages_are_found_however_they_are_cut(
    messages: list[bytes], cuts: list[int], rest: bytes
) -> None:
    data = b"".join(map(framed, messages)) + rest
    frames, found = Frames(), []
    for cut in cuts:
        piece, data = data[:cut], data[cut:]
        found += frames.take(piece)
    assert [*found, *frames.take(data)] == messages


def test_one_that_is_too_long_is_an_error_before_it_is_there() -> None:
    frames = Frames()
    assert frames.take(framed(b"x") + MAX_MESSAGE.to_bytes(4, "big")) == [b"x"]
    with pytest.raises(FrameError, match="67108865 bytes"):
        Frames().take((MAX_MESSAGE + 1).to_bytes(4, "big"))

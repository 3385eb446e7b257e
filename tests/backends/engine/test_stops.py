import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.stops import StopMatcher


def feed(stops: list[bytes], pieces: list[bytes]) -> tuple[bytes, int | None]:
    """The text up to the piece in which a stop was found, and what was to be trimmed from it."""
    matcher, text = StopMatcher(stops), b""
    for piece in pieces:
        text += piece
        trim = matcher.push(piece)
        if trim is not None:
            return text, trim
    return text, None


def kept(stops: list[bytes], pieces: list[bytes]) -> bytes:
    text, trim = feed(stops, pieces)
    return text[: len(text) - (trim or 0)]


def test_a_stop_within_one_piece() -> None:
    assert feed([b"STOP"], [b"go STOP on"]) == (b"go STOP on", 7)


def test_a_stop_over_many_pieces() -> None:
    """A stop string that no single token contains: mzau/mlx-knife#68, SharpAI/SwiftLM#126."""
    assert kept([b"</answer>"], [b"42", b"</", b"ans", b"wer", b">x"]) == b"42"


def test_nothing_of_a_stop_is_free_to_go_before_it_is_decided() -> None:
    """vllm#3574: of the stop string DEFGHIJ, DEF had been sent already."""
    matcher = StopMatcher([b"DEFGHIJ"])
    for piece, held in ((b"ABC", 0), (b"DEF", 3), (b"G", 4), (b"HI", 6)):
        assert matcher.push(piece) is None
        assert matcher.held == held
    assert matcher.push(b"JK") == 8


def test_a_false_start_is_let_go() -> None:
    matcher = StopMatcher([b"abac"])
    matcher.push(b"aba")
    assert matcher.held == 3
    matcher.push(b"b")
    assert matcher.held == 2
    matcher.push(b"x")
    assert matcher.held == 0


def test_a_match_within_a_failed_one() -> None:
    assert kept([b"aaab", b"aac"], [b"xa", b"aa", b"aac"]) == b"xaaa"


def test_the_earliest_end_wins() -> None:
    assert kept([b"bcdef", b"cd"], [b"abcdef"]) == b"ab"


def test_of_two_that_end_together_the_longer_wins() -> None:
    assert kept([b"d", b"bcd"], [b"abcd"]) == b"a"
    assert kept([b"bcd", b"d"], [b"abcd"]) == b"a"


def test_half_a_character_is_no_match() -> None:
    assert kept(["ď".encode()], ["č".encode()[:1], "č".encode()[1:]]) == "č".encode()
    assert kept(["ď".encode()], ["aď".encode()[:2], "aď".encode()[2:]]) == b"a"


def test_an_empty_stop_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher([b"a", b""])


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4).map(str.encode), min_size=1, max_size=4),
    pieces=st.lists(st.text("abc", max_size=5).map(str.encode), max_size=8),
)
def test_it_agrees_with_looking_everywhere(stops: list[bytes], pieces: list[bytes]) -> None:
    matcher, text = StopMatcher(stops), b""
    for piece in pieces:
        text += piece
        ends = [
            (end, -len(stop)) for stop in stops for end in range(len(text) + 1) if text[:end].endswith(stop)
        ]
        trim = matcher.push(piece)
        if ends:
            end, length = min(ends)
            assert trim == len(text) - end - length
            return
        assert trim is None
        prefixes = {stop[:length] for stop in stops for length in range(len(stop))}
        assert matcher.held == max(len(prefix) for prefix in prefixes if text.endswith(prefix))


def test_a_thousand_stops_cost_little_more_than_one() -> None:
    few = StopMatcher([b"never 0"])
    many = StopMatcher(b"never %d" % n for n in range(1000))
    text = b"never was so much told to so many " * 300
    assert _seconds(many, text) < 10 * _seconds(few, text)


def _seconds(matcher: StopMatcher, text: bytes) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        assert matcher.push(text) is None
        times.append(time.perf_counter() - start)
    return min(times)

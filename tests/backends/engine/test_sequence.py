from collections.abc import Callable

from backends.engine.batch import Row
from backends.engine.sequence import Sequence
from backends.engine.stops import StopMatcher

Make = Callable[..., Sequence]
VOCABULARY = [b"", b"a", b"b", b"S", b"T", b"xS"]


def accept(sequence: Sequence, *tokens: int) -> list[str | None]:
    return [sequence.accept(token, VOCABULARY[token]) for token in tokens]


def test_a_chunk_wants_no_sample_and_the_end_of_the_prompt_does(sequence: Make) -> None:
    one = sequence([5, 6, 7, 8], blocks=[3, 9])
    assert one.row(3) == Row([5, 6, 7], 0, [3, 9], None)
    one.computed = 3
    assert one.row(1) == Row([8], 3, [3, 9], one.sampling)


def test_an_end_token_stops_and_leaves_no_text(sequence: Make) -> None:
    one = sequence([5], ends=frozenset({0, 2}))
    assert accept(one, 1, 2) == [None, "stop"]
    assert (one.tell_all(), one.trim) == ([1, 2], 1)


def test_the_last_token_that_fits_ends_by_length(sequence: Make) -> None:
    one = sequence([5, 5], max_length=4)
    assert accept(one, 1, 1) == [None, "length"]


def test_a_stop_goes_before_length(sequence: Make) -> None:
    assert accept(sequence([5, 5], max_length=4), 1, 0) == [None, "stop"]
    assert accept(sequence([5, 5], max_length=4, stops=StopMatcher([b"ab"])), 1, 2) == [None, "stop"]


def test_without_stop_strings_everything_is_told_at_once(sequence: Make) -> None:
    one = sequence([5])
    accept(one, 1, 2)
    assert one.tell(VOCABULARY) == [1, 2]
    assert one.tell(VOCABULARY) == []


def test_a_token_is_held_that_has_the_beginning_of_a_stop_in_it(sequence: Make) -> None:
    one = sequence([5], stops=StopMatcher([b"ST"]))
    accept(one, 1, 5)
    assert one.tell(VOCABULARY) == [1]
    accept(one, 0)
    assert one.tell(VOCABULARY) == []
    accept(one, 2)
    assert one.tell(VOCABULARY) == [5, 0, 2]


def test_a_stop_over_two_tokens_is_trimmed(sequence: Make) -> None:
    one = sequence([5], stops=StopMatcher([b"ST"]))
    assert accept(one, 5, 4) == [None, "stop"]
    assert (one.tell_all(), one.trim) == ([5, 4], 2)


def test_rank_is_priority_then_arrival(sequence: Make) -> None:
    late, urgent, early = (
        sequence([1], number=2),
        sequence([1], number=3, priority=-1),
        sequence([1], number=1),
    )
    assert sorted([late, urgent, early], key=lambda each: each.rank) == [urgent, early, late]

"""Drafts by looking up, against the plainest search there is."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.cache import BlockCache
from backends.engine.sequence import Sequence
from backends.engine.speculation.ngram import LONGEST, SHORTEST, SMALLEST, History, NgramDrafter

CACHE = BlockCache(1, 1)
IDS = st.lists(st.integers(0, 3), min_size=1, max_size=120)


def searched(ids: list[int], count: int) -> list[int]:
    """What followed the longest run at the end of `ids`, where it was last; a repetition goes on."""
    for run in range(min(LONGEST, len(ids) - 1), SHORTEST - 1, -1):
        for end in range(len(ids) - 1, run - 1, -1):
            if ids[end - run : end] == ids[-run:]:
                future = list(ids)
                while len(future) < len(ids) + count:
                    future.append(future[end + len(future) - len(ids)])
                return future[len(ids) :]
    return []


def same_run(ids: list[int], draft: list[int]) -> bool:
    """Whether the draft is what followed some run of tokens that `ids` end with."""
    return any(
        ids[end - SHORTEST : end] == ids[-SHORTEST:] and (ids + draft)[end : end + len(draft)] == draft
        for end in range(SHORTEST, len(ids))
    )


@settings(deadline=None)  # it compiles
@given(ids=IDS, cuts=st.lists(st.integers(1, 120)), count=st.integers(1, 9))
def test_what_it_finds_is_what_a_search_finds(ids: list[int], cuts: list[int], count: int) -> None:
    """In any number of steps. Of two runs that share a place in the table, the later one may hide the earlier."""
    history = History()
    for cut in sorted(cut for cut in cuts if cut < len(ids)):
        history.following(ids[:cut], 1)
    draft, right = history.following(ids, count), searched(ids, count)
    assert draft == History().following(ids, count)
    assert draft == right or (right and (not draft or same_run(ids, draft)))


def test_the_longest_run_decides_and_then_the_latest() -> None:
    history = History()
    assert history.following([1, 2, 3, 9, 5, 2, 3, 8, 1, 2, 3], 1) == [9]
    assert History().following([2, 3, 9, 5, 2, 3, 8, 1, 2, 3], 2) == [8, 1]


def test_a_repetition_goes_on_beyond_the_end() -> None:
    assert History().following([7, 8, 9, 7, 8, 9, 7, 8], 8) == [9, 7, 8, 9, 7, 8, 9, 7]
    assert History().following([5, 5, 5], 4) == [5, 5, 5, 5]


def test_nothing_is_known_of_what_is_new() -> None:
    assert History().following([1], 4) == []
    assert History().following([1, 2, 3, 4], 4) == []
    assert History().following([3, 1, 2, 3], 4) == []  # one token is no run


def test_it_grows_with_the_sequence() -> None:
    ids = [number % 997 for number in range(5 * SMALLEST)]
    history = History()
    found = sum(
        history.following(ids[:length], 3) == ids[length : length + 3] for length in range(1, len(ids) - 3)
    )
    assert found > len(ids) - 997 - 20


def test_each_sequence_has_its_own_and_takes_it_along(sequence: Callable[..., Sequence]) -> None:
    drafter = NgramDrafter()
    one, two = sequence([1, 2, 3, 1, 2], number=1), sequence([1, 2, 4, 1, 2], number=2)
    assert drafter.propose([(one, 1), (two, 2)], CACHE) == [[3], [4, 1]]
    one.ids.extend([3, 4, 1, 2])
    assert drafter.propose([(one, 2)], CACHE) == [[3, 4]]
    drafter.forget(one)
    drafter.forget(one)
    assert drafter.propose([(one, 2), (two, 1)], CACHE) == [[3, 4], [4]]

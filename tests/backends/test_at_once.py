"""Deltas that have come at once are one where nothing is lost by it, and say so where they are not."""

from collections.abc import Iterator

import pytest

from backends.backend import CallPiece, Delta, TokenScore, Unavailable, Usage, at_once
from backends.wire import Signal

ONE, TWO, THREE = (Delta(text=text, tokens=1) for text in "123")


def scored(text: str) -> Delta:
    return Delta(text=text, tokens=1, scores=(TokenScore(text=text, data=text.encode(), logprob=-1.0),))


def told(deltas: Iterator[Delta]) -> list[tuple[str, bool]]:
    return [(delta.text, delta.more) for delta in at_once(deltas)]


def test_what_comes_at_once_is_one() -> None:
    assert told(iter(())) == []
    assert told(iter([ONE])) == [("1", False)]
    assert list(at_once(iter([ONE, TWO, THREE]))) == [Delta(text="123", tokens=3)]


def test_the_end_belongs_to_it() -> None:
    usage = Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=4)
    end = Delta(text="2", tokens=1, cached=4, finish="stop", stopped_by="x", usage=usage)
    [joined] = at_once(iter([ONE, end]))
    assert joined == Delta(text="12", tokens=2, cached=4, finish="stop", stopped_by="x", usage=usage)


def test_what_follows_on_text_stays_behind_it() -> None:
    call = CallPiece(index=0, id="call_1", name="look", arguments="")
    more = CallPiece(index=0, arguments="{}")
    assert list(at_once(iter([ONE, Delta(calls=(call,)), Delta(calls=(more,))]))) == [
        Delta(text="1", tokens=1, calls=(call,), more=True),
        Delta(calls=(more,)),
    ]


@pytest.mark.parametrize(
    "other",
    [
        Delta(index=1, text="2", tokens=1),
        scored("2"),
        Delta(text="2", tokens=1, signals=(Signal(logprob=-1.0, margin=1.0, entropy=1.0),)),
    ],
)
def test_what_is_told_of_answers_and_of_tokens_stays_with_them(other: Delta) -> None:
    for first, second in ((ONE, other), (other, ONE)):
        found = list(at_once(iter([first, second])))
        assert [(delta.text, delta.index, delta.more) for delta in found] == [
            (first.text, first.index, True),
            (second.text, second.index, False),
        ]
        assert [(delta.scores, delta.signals) for delta in found] == [
            (first.scores, first.signals),
            (second.scores, second.signals),
        ]


def test_a_failure_comes_behind_all_that_came_before_it() -> None:
    def broken() -> Iterator[Delta]:
        yield scored("1")
        yield scored("2")
        raise Unavailable("gone", "upstream_eof")

    seen = []
    with pytest.raises(Unavailable, match="gone"):
        for delta in at_once(broken()):
            seen.append((delta.text, delta.more))
    assert seen == [("1", True), ("2", False)]

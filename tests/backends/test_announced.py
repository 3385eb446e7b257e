"""Deltas that have come at once say so, whatever comes behind them."""

from collections.abc import Iterator

import pytest

from backends.backend import Delta, Unavailable, announced

ONE, TWO, THREE = (Delta(text=text, tokens=1) for text in "123")


def told(deltas: Iterator[Delta]) -> list[tuple[str, bool]]:
    return [(delta.text, delta.more) for delta in announced(deltas)]


def test_each_but_the_last_has_more_behind_it() -> None:
    assert told(iter(())) == []
    assert told(iter([ONE])) == [("1", False)]
    assert told(iter([ONE, TWO, THREE])) == [("1", True), ("2", True), ("3", False)]


def test_a_failure_comes_behind_all_that_came_before_it() -> None:
    def broken() -> Iterator[Delta]:
        yield ONE
        yield TWO
        raise Unavailable("gone", "upstream_eof")

    seen = []
    with pytest.raises(Unavailable, match="gone"):
        for delta in announced(broken()):
            seen.append((delta.text, delta.more))
    assert seen == [("1", True), ("2", False)]

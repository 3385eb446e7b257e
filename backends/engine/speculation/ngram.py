"""Drafts by looking up: what followed the answer's last few tokens when they last stood in prompt or answer.

It costs no model and pays where an answer repeats what is there: in code that is edited, in quotations, in summaries.
For each sequence a table is kept that grows with it, so that a step costs what is new, whatever lies before.
"""

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.engine.cache import BlockCache
from backends.engine.sequence import Sequence
from backends.engine.speculation.drafter import Reading, Wish
from backends.kernels.team import jit
from backends.wire import DraftMethod

LONGEST, SHORTEST = 5, 2  # tokens that have to be the same, the longest ones are tried first
SMALLEST = 256  # tokens that a table has room for at first
_LOAD = 4  # places for each token: a place that two claim is the later one's
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

Ints = NDArray[np.int32]


class NgramDrafter:
    """A `Drafter` by the sequences' own tokens."""

    method: DraftMethod = "ngram"

    def __init__(self) -> None:
        self._histories: dict[int, History] = {}  # by the sequence's number

    def lag(self, sequence: Sequence, cache: BlockCache) -> int:
        return 0

    def prepare(self, wishes: list[Wish], cache: BlockCache, *, idle: bool) -> Reading | None:
        """Nothing: a table learns faster than it is asked."""
        return None

    def propose(self, wishes: list[Wish], cache: BlockCache) -> list[list[int]]:
        return [self._history(sequence).following(sequence.ids, count) for sequence, count in wishes]

    def _history(self, sequence: Sequence) -> "History":
        return self._histories.setdefault(sequence.number, History())

    def warm_up(self) -> None:
        """Compile what is compiled on first use."""
        History().following([0], 1)

    def forget(self, sequence: Sequence) -> None:
        self._histories.pop(sequence.number, None)


class History:
    """The tokens of one sequence, and for each length where its runs of so many tokens ended last."""

    def __init__(self) -> None:
        self._length = 0
        self._make_room(SMALLEST)

    def _make_room(self, tokens: int) -> None:
        self._tokens: Ints = np.zeros(tokens, np.int32)
        self._ends: Ints = np.zeros((LONGEST - SHORTEST + 1, tokens * _LOAD), np.int32)

    def following(self, ids: "array[int] | list[int]", count: int) -> list[int]:
        """Up to `count` tokens; `ids` have only grown since the last call."""
        if len(ids) > len(self._tokens):
            self._make_room(1 << (len(ids) - 1).bit_length())
            self._length = 0
        before, self._length = self._length, len(ids)
        self._tokens[before : len(ids)] = ids[before:]
        _learn(self._tokens, before, len(ids), self._ends)
        start = _look(self._tokens, len(ids), self._ends)
        if not start:
            return []
        draft: list[int] = self._tokens[start : min(start + count, len(ids))].tolist()
        while len(draft) < count:  # the answer repeats itself: so does its future
            draft.append(draft[start - len(ids)])
        return draft


@jit
def _learn(tokens: Any, known: int, length: int, ends: Any) -> None:
    """Note for each run of tokens which one followed it, up to the last but one token."""
    for place in range(max(known, 1), length):
        for row in range(len(ends)):
            run = SHORTEST + row
            if run <= place:
                ends[row, _at(tokens, place, run, ends.shape[1])] = place


@jit
def _look(tokens: Any, length: int, ends: Any) -> Any:
    """Where the tokens went on after the longest run that they end with now; 0 where none of them has been before."""
    for row in range(len(ends) - 1, -1, -1):
        run = SHORTEST + row
        if run < length:
            place = ends[row, _at(tokens, length, run, ends.shape[1])]
            if place and _same(tokens, place, length, run):
                return place
    return 0


@jit
def _at(tokens: Any, end: Any, run: int, places: int) -> Any:
    """The place in a table, whose size is a power of two, of the `run` tokens before `end`."""
    key = np.uint64(0)
    for place in range(end - run, end):
        key = (key ^ np.uint64(tokens[place])) * _FACTOR
        key ^= key >> np.uint64(29)
    return key & np.uint64(places - 1)


@jit
def _same(tokens: Any, one: Any, other: Any, run: int) -> Any:
    for back in range(1, run + 1):
        if tokens[one - back] != tokens[other - back]:
            return False
    return True

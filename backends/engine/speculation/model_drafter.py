"""Drafts by a smaller model with the same vocabulary, which draws with the same noise as the one that verifies.

Its keys and values lie in the same blocks as those of the larger model, in arrays of its own, so that a prefix found in
the cache serves both. For each block is known how many of its tokens the smaller model has run: what it lacks it makes
up for in steps in which nobody waits for a first token, a little in each, before it drafts.
"""

from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np

from backends.engine.batch import Batch, Row, Runner
from backends.engine.cache import BlockCache
from backends.engine.sequence import Sequence
from backends.engine.speculation.drafter import Reading, Wish
from backends.wire import MAX_DRAFT, DraftMethod

CATCH_UP = 64  # tokens that one step makes up for: streams feel it
FEW = MAX_DRAFT + 2  # tokens that need no catching up, since one step brings as many


@dataclass(slots=True)
class Ahead:
    """Drafted tokens that have been run, from position `start` on: they count once they are said."""

    start: int
    tokens: list[int]


class ModelDrafter:
    """A `Drafter` by a runner that has as many blocks as that of the larger model."""

    method: DraftMethod = "draft"

    def __init__(self, runner: Runner, blocks: int, positions: int) -> None:
        """`positions`: the most tokens of a sequence that the model can take."""
        self._runner = runner
        self._positions = positions
        self._filled = np.zeros(blocks, np.int64)  # tokens that were run, at the beginning of each block …
        self._births = np.zeros(blocks, np.int64)  # … since it was given out for this time
        self._ahead: dict[int, Ahead] = {}  # by the sequence's number, like the next
        self._ready: dict[int, int] = {}  # how many tokens have been run, where a draft can be made

    def lag(self, sequence: Sequence, cache: BlockCache) -> int:
        lag = len(sequence.ids) - self._known(sequence, cache)
        return lag if lag > FEW else 0

    def prepare(self, wishes: list[Wish], cache: BlockCache, *, idle: bool) -> Reading | None:
        self._ready.clear()
        reading = None  # one sequence at a time: what it reads may be what the next one has to
        for sequence, count in wishes:
            length = len(sequence.ids) + count
            if length > self._positions or cache.missing(sequence, length) > cache.available:
                continue
            cache.extend(sequence, length)
            known = self._known(sequence, cache)
            lag = len(sequence.ids) - known
            if lag > FEW and idle and reading is None:
                reading = sequence, self._catch_up(sequence, cache, known)
                known += reading[1]
                lag -= reading[1]
            if lag <= FEW:
                self._ready[sequence.number] = known
        return reading

    def _catch_up(self, sequence: Sequence, cache: BlockCache, known: int) -> int:
        """Run some of what follows the `known` tokens; how many."""
        stop = min(len(sequence.ids) - 1, known + CATCH_UP)
        self._mark(sequence, cache, stop)
        self._run([Row(sequence.ids[known:stop].tolist(), known, list(sequence.blocks), None)])
        return stop - known

    def propose(self, wishes: list[Wish], cache: BlockCache) -> list[list[int]]:
        drafting = [wish for wish in wishes if wish[0].number in self._ready]
        rows = [self._first_row(sequence, cache) for sequence, _ in drafting]
        while rows:
            said = self._run(rows)
            more = [
                (sequence, count)
                for (sequence, count), [token] in zip(drafting, said, strict=True)
                if sequence.draft.add(token) and len(sequence.draft.tokens) < count
            ]
            drafting, rows = more, [_next_row(sequence) for sequence, _ in more]
        drafts = [list(sequence.draft.tokens) for sequence, _ in wishes]
        for (sequence, _), draft in zip(wishes, drafts, strict=True):
            if sequence.number in self._ready:
                self._ahead[sequence.number] = Ahead(len(sequence.ids), draft[:-1])
        return drafts

    def forget(self, sequence: Sequence) -> None:
        self._ahead.pop(sequence.number, None)

    def _run(self, rows: list[Row]) -> list[list[int]]:
        return self._runner.collect(self._runner.launch(Batch(rows)))

    def _first_row(self, sequence: Sequence, cache: BlockCache) -> Row:
        known = self._ready[sequence.number]
        self._mark(sequence, cache, len(sequence.ids))
        tokens, choices = sequence.ids[known:].tolist(), [sequence.choice(0)]
        return Row(tokens, known, list(sequence.blocks), sequence.sampling, choices)

    def _known(self, sequence: Sequence, cache: BlockCache) -> int:
        """How many of the sequence's first tokens were run, less the last one, which is run to draft."""
        size, blocks = cache.block_size, np.array(sequence.blocks)
        filled = np.where(self._births[blocks] == cache.births[blocks], self._filled[blocks], 0)
        short = np.flatnonzero(filled < size)
        known = len(blocks) * size if not len(short) else int(short[0]) * size + int(filled[short[0]])
        ahead = self._ahead.pop(sequence.number, None)
        if ahead is not None and ahead.start == known:
            known += self._said(sequence, cache, ahead)
            self._mark(sequence, cache, known)
        return min(known, len(sequence.ids) - 1)

    def _said(self, sequence: Sequence, cache: BlockCache, ahead: Ahead) -> int:
        """How many tokens of what was run ahead have been said since, and lie where they did."""
        said = sequence.ids[ahead.start : ahead.start + len(ahead.tokens)]
        for place, token in enumerate(said):
            block = sequence.blocks[(ahead.start + place) // cache.block_size]
            if token != ahead.tokens[place] or self._births[block] != cache.births[block]:
                return place
        return len(said)

    def _mark(self, sequence: Sequence, cache: BlockCache, stop: int) -> None:
        """All of the sequence's tokens before position `stop` have been run, or will be before anybody asks."""
        size = cache.block_size
        blocks = np.array(sequence.blocks[: -(-stop // size)])
        self._births[blocks] = cache.births[blocks]
        self._filled[blocks] = size
        if stop % size:
            self._filled[blocks[-1]] = stop % size
        behind = np.array(sequence.blocks[len(blocks) :], np.int64)  # nothing in there counts yet
        self._births[behind] = cache.births[behind]
        self._filled[behind] = 0


def _next_row(sequence: Sequence) -> Row:
    """Goes on from the draft so far."""
    tokens: Several[int] = sequence.draft.tokens
    start = len(sequence.ids) + len(tokens) - 1
    choices = [sequence.choice(len(tokens))]
    return Row([tokens[-1]], start, list(sequence.blocks), sequence.sampling, choices)

"""The next step is made ready and launched while the device still runs the last one.

That is possible where each running sequence gets one more token and nothing else is to be decided: the tokens that it
starts from have not been told, but the device has them. A sequence that the last token turns out to have ended is in
one step too many; what that brings is thrown away. Whoever comes meanwhile begins one step later. Steps in which more
may change are launched when the last one is told, as without a device that works by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backends.engine.batch import Batch
from backends.engine.cache import BlockCache
from backends.engine.division import Scheduled
from backends.engine.outcome import Outcome
from backends.engine.sequence import Sequence

# Launches a batch of single tokens, which are those that the pending step samples for its rows of these numbers.
Follow = Callable[[Batch, list[int], Any], Any]


@dataclass(slots=True)
class Step:
    """Some rows, on their way. `pending` is what the runner told when they were launched; None before that."""

    scheduled: list[Scheduled]
    batch: Batch
    pending: Any = None

    def alive(self, outcomes: list[Outcome]) -> "tuple[Step, list[Outcome]]":
        """Without the rows of sequences that have ended since they were launched."""
        kept = [place for place, (sequence, _) in enumerate(self.scheduled) if sequence.running]
        batch = Batch([self.batch.rows[place] for place in kept])
        scheduled = [self.scheduled[place] for place in kept]
        return Step(scheduled, batch, self.pending), [outcomes[place] for place in kept]


class Overlap:
    """The step that is launched ahead of its turn, if any is."""

    def __init__(self, follow: Follow | None, cache: BlockCache) -> None:
        """`follow`: None where steps do not overlap."""
        self._follow = follow
        self._cache = cache
        self._next: Step | None = None

    def take(self) -> Step | None:
        """The step whose turn it is, if it was launched already and anybody in it still runs."""
        step, self._next = self._next, None
        if step is None or not any(sequence.running for sequence, _ in step.scheduled):
            return None
        return step

    def launch_next(self, step: Step, running: list[Sequence]) -> None:
        """Launch what follows `step`, which is under way, where that can be told by now.

        `running`: all that the next step would have rows of, with nobody who waits.
        """
        if self._follow is None:
            return
        rows = following(step, running)
        missing = sum(self._cache.missing(sequence, len(sequence.ids) + 1) for _, sequence in rows)
        if not rows or missing > self._cache.available:
            return
        for _, sequence in rows:
            self._cache.extend(sequence, len(sequence.ids) + 1)
        batch = Batch([sequence.row_ahead() for _, sequence in rows])
        pending = self._follow(batch, [place for place, _ in rows], step.pending)
        self._next = Step([(sequence, 1) for _, sequence in rows], batch, pending)


def following(step: Step, running: list[Sequence]) -> list[tuple[int, Sequence]]:
    """The rows of `step` whose sequences are the rows of the next one, none where that is not sure."""
    alive = [(place, *row) for place, row in enumerate(step.scheduled) if row[0].running]
    known = {id(sequence) for _, sequence, _ in alive}
    if any(id(sequence) not in known for sequence in running):
        return []  # somebody was left out of this step
    going_on = [row for row in alive if not row[1].ends_next]
    if not all(sequence.foreseeable(count) for _, sequence, count in going_on):
        return []
    return [(place, sequence) for place, sequence, _ in going_on]

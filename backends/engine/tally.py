"""What an engine counts: what its steps run, how answers end, and whether they come as fast as they should."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Any

from backends.engine.division import Scheduled
from backends.engine.sequence import Sequence
from backends.wire import GAPS, MAX_STEPS, STEP_SIZES, FinishReason, StepRun

PACE = 20.0  # tokens per second that a reader should get
LATEST = 32  # starts by which it is judged how fast the queue moves
SHORTEST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds that somebody may be told to stay away


class Tally:
    """Counts since the engine's start, by fields of `backends.wire.Load`."""

    def __init__(self, bands: int) -> None:
        self._counts: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._in_time = [0] * bands
        self._late = [0] * bands
        self._gaps = [0] * (len(GAPS) + 1)
        self._gap_seconds = 0.0
        self._step_sizes = [0] * (len(STEP_SIZES) + 1)
        self._starts: list[float] = []  # when the last sequences were started

    def step(self, scheduled: Iterable[Scheduled], now: float, band: int) -> None:
        """A step is about to run. `band`: the one in force, which is the one of those who start in it."""
        tokens = 0
        for sequence, count in scheduled:
            if sequence.scheduled is None:
                sequence.scheduled, sequence.band = now, band
                self._start(sequence, now)
            tokens += count
            self._counts["step_rows"] += 1
        self._counts["steps"] += 1
        self._counts["step_tokens"] += tokens
        self._step_sizes[bisect_left(STEP_SIZES, tokens)] += 1

    def ran(self, scheduled: list[Scheduled], began: float, ended: float) -> None:
        """A step has run; told of the sequences whose steps are asked for."""
        watched = [(sequence.steps, count) for sequence, count in scheduled if sequence.steps is not None]
        for steps, count in watched:
            if len(steps) < MAX_STEPS:
                total = sum(tokens for _, tokens in scheduled)
                steps.append(StepRun(began, ended, count, len(scheduled), total))

    def _start(self, sequence: Sequence, now: float) -> None:
        self._starts = [*self._starts[1 - LATEST :], now]
        if not sequence.index:  # a prompt counts once
            self._counts["prompt_tokens"] += sequence.prompt_length
            self._counts["cached_tokens"] += sequence.cached

    def token(self, sequence: Sequence, now: float, target: float) -> None:
        """One more of an answer; the first should come within `target` seconds where somebody waits for it."""
        self._counts["generation_tokens"] += 1
        before, sequence.last_token = sequence.last_token, now
        if before is not None:
            self._gaps[bisect_left(GAPS, now - before)] += 1
            self._gap_seconds += now - before
        if sequence.first_token is None:
            sequence.first_token = now
            if not sequence.batch:
                late = now - sequence.arrived > target
                (self._late if late else self._in_time)[sequence.band] += 1

    def end(self, sequence: Sequence, finish: FinishReason, now: float) -> None:
        self._finished[finish] += 1
        said = len(sequence.ids) - sequence.prompt_length
        if sequence.first_token is None or sequence.batch or said < 2:
            return
        self._counts["streams"] += 1
        if said - 1 >= PACE * (now - sequence.first_token):
            self._counts["streams_at_pace"] += 1

    def refused(self, reason: str) -> None:
        """A request has found no place in the queue. `reason`: one of `backends.wire.REFUSALS`."""
        self._refused[reason] += 1

    def patience(self, waiting: int, now: float) -> float:
        """Seconds until half of those that wait now should have started, as fast as the last ones have."""
        if not self._starts or now <= self._starts[0]:
            return SHORTEST_WAIT
        seconds = waiting / 2 * (now - self._starts[0]) / len(self._starts)
        return min(max(seconds, SHORTEST_WAIT), LONGEST_WAIT)

    def fields(self) -> dict[str, Any]:
        """Of Load."""
        names = (
            "prompt_tokens", "cached_tokens", "generation_tokens", "steps", "step_tokens", "step_rows", "streams",
            "streams_at_pace",
        )  # fmt: skip
        counts: dict[str, Any] = {name: self._counts[name] for name in names}
        return counts | {
            "finished": dict(self._finished),
            "refused": dict(self._refused),
            "first_in_time": tuple(self._in_time),
            "first_late": tuple(self._late),
            "gaps": tuple(self._gaps),
            "gap_seconds": self._gap_seconds,
            "step_sizes": tuple(self._step_sizes),
        }

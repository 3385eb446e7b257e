"""What a step has brought for each of its rows, and how much of a draft that leaves standing."""

from dataclasses import dataclass
from typing import Any

from backends.engine.batch import Batch, Row, Runner
from backends.wire import Score, Signal


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one row: the sampled tokens that hold, which are those of its draft as far as that was right and one more;
    their scores and signals where they are asked for, and the scores of the row's targets."""

    tokens: list[int]
    targets: list[Score]
    scores: list[Score]
    signals: list[Signal]


def outcomes(runner: Runner, batch: Batch, pending: Any, vocab_size: int) -> list[Outcome]:
    """Wait for a step that was launched. Raises what the runner raises, and ValueError where its answer cannot be."""
    sampled = runner.collect(pending)
    scores = runner.scores(pending) if batch.scored else [[] for _ in batch.rows]
    signals = runner.signals(pending) if batch.watched else [[] for _ in batch.rows]
    columns = zip(batch.rows, sampled, scores, signals, strict=True)
    return [_outcome(*column, vocab_size) for column in columns]


def _outcome(
    row: Row, sampled: list[int], scores: list[Score], signals: list[Signal], vocab_size: int
) -> Outcome:
    if len(sampled) != (0 if row.sampling is None else len(row.choices)):
        raise ValueError("the runner sampled where it was not asked to, or did not where it was")
    for token in sampled:
        if not 0 <= token < vocab_size:
            raise ValueError(f"the runner sampled {token}, outside the vocabulary")
    right = accepted(row.draft, sampled)
    targets = len(row.targets)
    return Outcome(
        sampled[: right + 1], scores[:targets], scores[targets : targets + right + 1], signals[: right + 1]
    )


def accepted(draft: list[int], sampled: list[int]) -> int:
    """How many tokens at the beginning of a draft are what was sampled in their places.

    The law is the model's own, whoever drafts: what holds is what the model has sampled after what holds.
    """
    for place, (drafted, said) in enumerate(zip(draft, sampled, strict=False)):
        if drafted != said:
            return place
    return len(draft)

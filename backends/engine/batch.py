"""What one step runs: rows of (sequence, token count), and the protocol of who runs it.

A row is a decode step (one token), a chunk of a prompt, or a whole prompt; nobody needs to know which.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from backends.wire import Sampling, Score, Signal

Words = NDArray[np.uint32]  # a bit for each token, the lowest one of the first word for token 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the penalties of a sequence look at: the prompt's distinct tokens, and how often it has said which."""

    prompt: frozenset[int]
    output: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, prompt: Iterable[int], sampling: Sampling) -> "Seen | None":
        """None where no penalty is asked for."""
        added = sampling.presence_penalty, sampling.frequency_penalty
        return cls(frozenset(prompt)) if any(added) or sampling.repetition_penalty != 1 else None


@dataclass(frozen=True, slots=True)
class Row:
    """Some tokens of one sequence.

    `tokens` get the positions `start`, `start + 1`, …; everything before `start` is in the blocks already.
    Position p lives in block `blocks[p // block_size]` at offset `p % block_size`; the blocks reach as far as the
    tokens do. `sampling` is None where no next token is wanted (a chunk that does not end its prompt); the
    sampled token would get position `start + len(tokens)`, and that position is what its noise is drawn from.

    `seen` is None without penalties; `banned` are tokens that must not be sampled, and where there is a grammar
    `allowed` are the only ones that may be: at least one, and none of the banned ones.

    Where scores are asked for, those of the sampled token and of `targets`: the tokens of the prompt that follow the
    first `len(targets)` ones here.
    """

    tokens: list[int]
    start: int
    blocks: list[int]
    sampling: Sampling | None
    seen: Seen | None = None
    banned: frozenset[int] = frozenset()
    allowed: Words | None = None
    targets: list[int] = field(default_factory=list)
    stretched: bool = (
        False  # the sequence is beyond the border of a rope that has one, see `layers.rope.LongScaling`
    )
    top: int | None = None  # how many of the likeliest tokens come with each score; None: no scores
    watched: bool = False  # whether the sampled token's signal is wanted

    @property
    def forced(self) -> bool:
        """Whether a grammar leaves but one token."""
        return self.allowed is not None and int(np.bitwise_count(self.allowed).sum()) == 1


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step, never empty. No two rows write the same block."""

    rows: list[Row]

    @property
    def scored(self) -> bool:
        """Whether any row asks for scores."""
        return any(row.top is not None for row in self.rows)

    @property
    def watched(self) -> bool:
        """Whether any row asks for a signal."""
        return any(row.watched for row in self.rows)


class Runner(Protocol):
    """Runs batches on a device. `launch` may return before the device is done; `collect` waits."""

    def launch(self, batch: Batch) -> Any: ...

    def collect(self, pending: Any) -> list[int | None]:
        """The sampled id of each row, None for rows without sampling."""
        ...

    def scores(self, pending: Any) -> list[list[Score]]:
        """For each row those of its targets, then that of its sampled token, as far as it has and asks for them.

        Only after `collect`, and only where a row asks.
        """
        ...

    def signals(self, pending: Any) -> list[Signal | None]:
        """For each row that of its sampled token, None for rows that do not ask. Only after `collect`."""
        ...

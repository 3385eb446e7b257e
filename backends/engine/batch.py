"""What one step runs: rows of (sequence, token count), and the protocol of who runs it.

A row is a decode step (one token), a chunk of a prompt, a whole prompt, or a decode step with drafted tokens behind
it that are to be verified; nobody needs to know which.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

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

    def and_then(self, tokens: list[int]) -> "Seen":
        """With `tokens` said as well."""
        return Seen(self.prompt, self.output + Counter(tokens)) if tokens else self


@dataclass(frozen=True, slots=True)
class Choice:
    """What narrows the choice of one token, besides its row's sampling.

    `seen` is None without penalties; `banned` are tokens that must not be sampled, and where there is a grammar
    `allowed` are the only ones that may be: at least one, and none of the banned ones.
    """

    seen: Seen | None = None
    banned: frozenset[int] = frozenset()
    allowed: Words | None = None

    @property
    def forced(self) -> bool:
        """Whether a grammar leaves but one token."""
        return self.allowed is not None and int(np.bitwise_count(self.allowed).sum()) == 1


FREE = Choice()


@dataclass(frozen=True, slots=True)
class Row:
    """Some tokens of one sequence.

    `tokens` get the positions `start`, `start + 1`, …; everything before `start` is in the blocks already.
    Position p lives in block `blocks[p // block_size]` at offset `p % block_size`; the blocks reach as far as the
    tokens do. `sampling` is None where no next token is wanted (a chunk that does not end its prompt); a token
    sampled after position p gets position p + 1, and that is what its noise is drawn from.

    One token is sampled for each of `choices`: after the last token here, and where there are several also after
    those before it. The last `len(choices) - 1` tokens are a draft then, and each choice takes the draft as far as it
    precedes it for what the answer says.

    Where scores are asked for, those of the sampled tokens and of `targets`: the tokens of the prompt that follow the
    first `len(targets)` ones here.
    """

    tokens: list[int]
    start: int
    blocks: list[int]
    sampling: Sampling | None
    choices: list[Choice] = field(default_factory=lambda: [FREE])
    targets: list[int] = field(default_factory=list)
    stretched: bool = (
        False  # the sequence is beyond the border of a rope that has one, see `layers.rotation.LongScaling`
    )
    top: int | None = None  # how many of the likeliest tokens come with each score; None: no scores
    watched: bool = False  # whether the sampled tokens' signals are wanted

    @property
    def draft(self) -> list[int]:
        """The tokens that nobody has said yet."""
        return self.tokens[len(self.tokens) - len(self.choices) + 1 :]


class Pick(NamedTuple):
    """One token to be sampled: for the batch's row `row`, after its token `after`."""

    row: int
    after: int
    sampling: Sampling
    choice: Choice


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step, never empty. No two rows write the same block."""

    rows: list[Row]

    @property
    def picks(self) -> list[Pick]:
        """The tokens to be sampled, row by row."""
        return [
            Pick(index, after, row.sampling, choice)
            for index, row in enumerate(self.rows)
            if row.sampling is not None
            for after, choice in enumerate(row.choices, len(row.tokens) - len(row.choices))
        ]

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

    def collect(self, pending: Any) -> list[list[int]]:
        """The sampled ids of each row, none for rows without sampling."""
        ...

    def scores(self, pending: Any) -> list[list[Score]]:
        """For each row those of its targets, then those of its sampled tokens, as far as it has and asks for them.

        Only after `collect`, and only where a row asks.
        """
        ...

    def signals(self, pending: Any) -> list[list[Signal]]:
        """For each row those of its sampled tokens, none for rows that do not ask. Only after `collect`."""
        ...

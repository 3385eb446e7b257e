"""What one step runs: rows of (sequence, token count), and the protocol of who runs it.

A row is a decode step (one token), a chunk of a prompt, or a whole prompt; nobody needs to know which.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from backends.wire import Sampling


@dataclass(frozen=True, slots=True)
class Row:
    """Some tokens of one sequence.

    `tokens` get the positions `start`, `start + 1`, …; everything before `start` is in the blocks already.
    Position p lives in block `blocks[p // block_size]` at offset `p % block_size`; the blocks reach as far as the
    tokens do. `sampling` is None where no next token is wanted (a chunk that does not end its prompt); the
    sampled token would get position `start + len(tokens)`, and that position is what its noise is drawn from.
    """

    tokens: list[int]
    start: int
    blocks: list[int]
    sampling: Sampling | None


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step, never empty. No two rows write the same block."""

    rows: list[Row]


class Runner(Protocol):
    """Runs batches on a device. `launch` may return before the device is done; `collect` waits."""

    def launch(self, batch: Batch) -> Any: ...

    def collect(self, pending: Any) -> list[int | None]:
        """The sampled id of each row, None for rows without sampling."""
        ...

"""Who proposes what an answer will say next."""

from typing import Protocol

from backends.engine.cache import BlockCache
from backends.engine.sequence import Sequence
from backends.wire import DraftMethod

Wish = tuple[Sequence, int]  # and how many tokens are wanted of what follows: at least one
Reading = tuple[Sequence, int]  # and how many of its tokens were run before anything could be drafted


class Drafter(Protocol):
    """May be wrong, or have nothing to say: no answer depends on it."""

    @property
    def method(self) -> DraftMethod: ...

    def lag(self, sequence: Sequence, cache: BlockCache) -> int:
        """How many of the sequence's tokens it would have to run in `prepare` before it can draft."""
        ...

    def prepare(self, wishes: list[Wish], cache: BlockCache, *, idle: bool) -> Reading | None:
        """Before `propose` is called for some of the wishes: do what is no part of what a draft costs.

        `idle`: nobody waits for a first token. Room in `cache` for the tokens wanted may be given to the sequences.
        """
        ...

    def propose(self, wishes: list[Wish], cache: BlockCache) -> list[list[int]]:
        """For each wish what follows all that the sequence has: at most as many tokens as wanted, maybe none."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """It has ended. One that was never asked about is no error."""
        ...

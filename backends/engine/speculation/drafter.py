"""Who proposes what an answer will say next."""

from typing import Protocol

from backends.engine.sequence import Sequence
from backends.wire import DraftMethod

Wish = tuple[Sequence, int]  # and how many tokens are wanted of what follows: at least one


class Drafter(Protocol):
    """May be wrong, or have nothing to say: no answer depends on it."""

    @property
    def method(self) -> DraftMethod: ...

    def propose(self, wishes: list[Wish]) -> list[list[int]]:
        """For each wish what follows all that the sequence has: at most as many tokens as wanted, maybe none."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """It has ended. One that was never asked about is no error."""
        ...

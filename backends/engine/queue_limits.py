"""How many requests may wait.

Who has filled the queue shuts nobody else out: a tenant with less than an equal part of it waits beside him, up to
twice the limit in all.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from backends.engine.sequence import Sequence
from backends.engine.waiting import WaitingQueue
from backends.wire import Submit


class Excess(NamedTuple):
    """Of what too much waits (one of `backends.wire.REFUSALS`), and the same in words."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """`tokens`: of their prompts."""

    requests: int
    tokens: int

    def excess(
        self, waiting: WaitingQueue, compiling: Collection[Sequence], submit: Submit, free_rows: int
    ) -> Excess | None:
        """Why there is no place for `submit`; None where there is.

        `compiling`: who waits for a grammar. `free_rows`: who came since the last step waits only until the next one
        where there are rows.
        """
        requests = len(waiting) + len(compiling) - free_rows
        tokens = waiting.tokens + len(submit.prompt) if waiting else 0
        if requests < self.requests and tokens <= self.tokens:
            return None
        crowd = [*waiting, *compiling]
        own = [sequence for sequence in crowd if sequence.tenant == submit.tenant]
        parts = len({sequence.tenant for sequence in crowd} | {submit.tenant})
        if requests >= self.requests and (
            len(own) >= self.requests // parts or requests >= 2 * self.requests
        ):
            return Excess("requests", f"{self.requests} requests are waiting already")
        own_tokens = sum(len(sequence.ids) for sequence in own) + len(submit.prompt)
        if tokens > self.tokens and (own_tokens > self.tokens // parts or tokens > 2 * self.tokens):
            return Excess("tokens", f"requests with {waiting.tokens} tokens are waiting already")
        return None

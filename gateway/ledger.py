"""What was done for one request: the stages that it passed, and every attempt with what it came to.

It holds times, names and counts, nothing that a client or a model has written.
"""

import time
from dataclasses import dataclass, field

from backends.backend import Delta, Timings, Usage

RUNNING = "running"
ANSWERED = "answered"
ABORTED = "aborted"  # by the client, or because the gateway leaves


@dataclass(frozen=True, slots=True)
class Stage:
    """Work that has ended. Times in Unix seconds, as all of this module."""

    name: str
    started: float
    ended: float


@dataclass(slots=True, kw_only=True)
class Entry:
    """One attempt. `outcome`: one of the words above, or the code of the error that ended it."""

    tier: str
    replica: str
    started: float = field(default_factory=time.time)
    first: float | None = None  # when its first delta came
    ended: float | None = None
    outcome: str = RUNNING
    usage: Usage | None = None
    cost: float = 0.0  # in the money of the price list
    timings: Timings | None = None  # of an engine of our own

    def begun(self) -> None:
        self.first = time.time()

    def failed(self, code: str) -> None:
        self.ended, self.outcome = time.time(), code

    def settled(self, last: Delta | None, usage: Usage, cost: float) -> None:
        """`last`: the final delta, None when the answer was cut short; an error has told why by then."""
        self.usage, self.cost = usage, cost
        self.timings = None if last is None else last.timings
        if self.outcome == RUNNING:
            self.ended, self.outcome = time.time(), ABORTED if last is None else ANSWERED


@dataclass(slots=True)
class Ledger:
    """One request's. Stages are in the order of their ends, attempts in that of their starts."""

    stages: list[Stage] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    largest: float = 0.0  # what the largest tier would have cost

    def open(self, tier: str, replica: str) -> Entry:
        """An attempt that begins now."""
        entry = Entry(tier=tier, replica=replica)
        self.entries.append(entry)
        return entry

"""What was done for one request: the stages that it passed, and every attempt with what it came to.

It holds times, names and counts, nothing that a client or a model has written.
"""

import time
from dataclasses import dataclass, field

import msgspec

from backends.backend import Delta, Timings, Usage

RUNNING = "running"
ANSWERED = "answered"
ABORTED = "aborted"  # by the client, or because the gateway leaves
ESCALATED = "escalated"  # judged, and answered by a dearer tier instead
FAILED = "failed"  # by whatever code
OUTCOMES = (ANSWERED, ESCALATED, ABORTED, FAILED)


class Stage(msgspec.Struct, frozen=True):
    """Work that has ended. Times in Unix seconds, as all of this module."""

    name: str
    started: float
    ended: float


@dataclass(slots=True, kw_only=True)
class Entry:
    """One attempt. `outcome`: one of the words above, or the code of the error that ended it, never `FAILED`."""

    tier: str
    replica: str
    model: str = ""
    started: float = field(default_factory=time.time)
    first: float | None = None  # when its first delta came
    ended: float | None = None
    outcome: str = RUNNING
    usage: Usage | None = None
    cost: float = 0.0  # in the money of the price list
    billed: bool = False  # whether the tenant's limits are charged with it
    confidence: float | None = None  # the last P(good) of its answer, where it was judged
    judged_after: int | None = None  # tokens of the answer by then
    timings: Timings | None = None  # of an engine of our own

    def begun(self) -> None:
        self.first = time.time()

    def ends(self, outcome: str) -> None:
        """Now, unless it is known already how it has ended."""
        if self.outcome == RUNNING:
            self.ended, self.outcome = time.time(), outcome

    def settled(self, last: Delta | None, usage: Usage, cost: float, *, billed: bool = True) -> None:
        """`last`: the final delta, None when the answer was cut short; an error has told why by then."""
        self.usage, self.cost, self.billed = usage, cost, billed
        self.timings = None if last is None else last.timings
        self.ends(ABORTED if last is None else ANSWERED)

    @property
    def kind(self) -> str:
        """Its outcome as one of a closed set."""
        return self.outcome if self.outcome in OUTCOMES else FAILED


@dataclass(slots=True)
class Ledger:
    """One request's. Stages are in the order of their ends, attempts in that of their starts."""

    stages: list[Stage] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    largest: float = 0.0  # what the largest tier would have cost

    def open(self, tier: str, replica: str, model: str = "") -> Entry:
        """An attempt that begins now. `model`: the replica's."""
        entry = Entry(tier=tier, replica=replica, model=model)
        self.entries.append(entry)
        return entry

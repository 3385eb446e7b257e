"""What each process of a gateway knows, and what all of them know together."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

import msgspec

from backends.wire import Load
from gateway.dashboard.history import Bucket, History
from gateway.dashboard.state import Brief, Condition

GRAVITY = {condition: place for place, condition in enumerate(get_args(Condition))}
"""Of conditions, from the best to the worst."""


class Standing(NamedTuple):
    """How one process finds a replica. `in_flight`: the generations that it has running there."""

    condition: Condition
    in_flight: int


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one process knows. `loads`: by engine, from the process that listens to it."""

    started: float  # Unix seconds
    leaving: bool
    running: dict[str, int]  # requests by tenant
    buckets: tuple[Bucket, ...]
    loads: dict[str, Load]
    latest: tuple[Brief, ...]
    ready: dict[str, bool]  # by tier
    replicas: dict[str, Standing]


class Whole:
    """Shares added up."""

    def __init__(self, shares: Sequence[Share], clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: as that of their histories."""
        self._shares = shares
        self.started = min(share.started for share in shares)
        self.leaving = any(share.leaving for share in shares)
        self.running: Counter[str] = Counter()
        self.loads: dict[str, Load] = {}
        self.history = History(clock)
        for share in shares:
            self.running.update(share.running)
            self.loads.update(share.loads)
            self.history.add(share.buckets)

    def ready(self, tier: str) -> bool:
        """For everybody who has it."""
        return all(share.ready.get(tier, True) for share in self._shares)

    def standing(self, replica: str) -> Standing:
        """The worst condition that anyone finds it in, and the generations of all."""
        found = [share.replicas[replica] for share in self._shares if replica in share.replicas]
        worst = max((standing.condition for standing in found), key=GRAVITY.__getitem__)
        return Standing(worst, sum(standing.in_flight for standing in found))

    def latest(self, count: int) -> tuple[Brief, ...]:
        """The newest first."""
        briefs = [brief for share in self._shares for brief in share.latest]
        if len(self._shares) > 1:
            briefs.sort(key=lambda brief: brief.at + brief.seconds, reverse=True)
        return tuple(briefs[:count])

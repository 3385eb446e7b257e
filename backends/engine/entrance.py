"""Which of those that wait may start, step by step. See `division.Newcomers`, which this is."""

from collections.abc import Callable, Collection, Mapping

from backends.engine.queues import Queues
from backends.engine.sequence import Level, Sequence
from prefixcache.tree import Match


class Entrance:
    """Lets sequences in, one of each tenant at a time, as rows and blocks allow.

    Who is next and finds too few blocks has the next turn until there are enough, and nobody less urgent starts before
    him: who asks for less would otherwise get what has become free, again and again.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._rows = 0
        self._closed = False
        self._matches: dict[int, Match] = {}
        self._heads: dict[Level, Mapping[str, Sequence]] = {}  # as long as nobody starts
        self._claim: tuple[Level, str] | None = None  # whose first in line waits for blocks

    def open(self, rows: int) -> None:
        """For a step, in which `rows` sequences may run. Until it ends, nothing is stored or evicted."""
        self._rows = rows
        self._closed = False
        self._matches = {}
        self._heads = {}

    def levels(self) -> list[Level]:
        return self._queues.waiting.levels()

    def heads(self, level: Level) -> Mapping[str, Sequence]:
        if level not in self._heads:
            self._heads[level] = self._look(level)
        return self._heads[level]

    def _look(self, level: Level) -> Mapping[str, Sequence]:
        if self._closed or not self._queues.has_room(level, self._rows):
            return {}
        heads = self._queues.waiting.heads(level)
        if len(self._queues.waiting.tenants()) > 1:
            used = self._queues.blocks_by_tenant()
            exceeding = [
                tenant
                for tenant, head in heads.items()
                if self._queues.exceeds_share(head, self.match(head), used[tenant])
            ]
            for tenant in exceeding:
                del heads[tenant]
        return self._claimed(level, heads)

    def _claimed(self, level: Level, heads: Mapping[str, Sequence]) -> Mapping[str, Sequence]:
        if self._claim is not None and self._claim[0] == level and self._claim[1] in heads:
            return {self._claim[1]: heads[self._claim[1]]}
        return heads

    def first(self, choose: Callable[[Collection[str]], str]) -> Sequence | None:
        """Who would start now, were there blocks for all."""
        for level in self.levels():
            if heads := self.heads(level):
                return heads[choose(heads.keys())]
        return None

    def match(self, sequence: Sequence) -> Match:
        """What the cache has of one that waits."""
        known = self._matches.get(sequence.number)
        if known is None:
            known = self._matches[sequence.number] = self._queues.match(sequence)
        return known

    def lacking(self, sequence: Sequence) -> int:
        return len(sequence.ids) - len(self.match(sequence).blocks) * self._queues.block_size

    def start(self, sequence: Sequence) -> bool:
        match = self.match(sequence)
        self._heads = {}
        if self._queues.lacking_blocks(sequence, match) > 0:
            self._claim = sequence.level, sequence.tenant
            self._closed = True
            return False
        if self._claim == (sequence.level, sequence.tenant):
            self._claim = None
        self._queues.start(sequence, match)
        return True

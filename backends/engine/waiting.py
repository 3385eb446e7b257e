"""Who waits to be run: by urgency, in that by tenant, in that by arrival."""

from bisect import insort
from collections.abc import Iterator

from backends.engine.sequence import Level, Sequence


class WaitingQueue:
    """Iterates in the order of rank."""

    def __init__(self) -> None:
        self.tokens = 0  # of all that wait
        self._levels: dict[Level, dict[str, list[Sequence]]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sequence]:
        for level in self.levels():
            yield from sorted(
                (each for line in self._levels[level].values() for each in line), key=lambda each: each.rank
            )

    def levels(self) -> list[Level]:
        """Those at which somebody waits, the most urgent first."""
        return sorted(self._levels)

    def heads(self, level: Level) -> dict[str, Sequence]:
        """The first of each tenant."""
        return {tenant: line[0] for tenant, line in self._levels.get(level, {}).items()}

    def tenants(self) -> set[str]:
        return {tenant for lines in self._levels.values() for tenant in lines}

    def add(self, sequence: Sequence) -> None:
        """By its arrival: one that has run before comes back to its old place."""
        line = self._levels.setdefault(sequence.level, {}).setdefault(sequence.tenant, [])
        insort(line, sequence, key=lambda each: each.number)
        self._length += 1
        self.tokens += len(sequence.ids)

    def remove(self, sequence: Sequence) -> None:
        """Raises KeyError or ValueError for one that does not wait."""
        lines = self._levels[sequence.level]
        lines[sequence.tenant].remove(sequence)
        if not lines[sequence.tenant]:
            del lines[sequence.tenant]
        if not lines:
            del self._levels[sequence.level]
        self._length -= 1
        self.tokens -= len(sequence.ids)

    def check(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        waiting = list(self)
        assert len(waiting) == self._length
        assert self.tokens == sum(len(each.ids) for each in waiting)
        for level, lines in self._levels.items():
            for tenant, line in lines.items():
                assert line and line == sorted(line, key=lambda each: each.rank)
                assert all((each.level, each.tenant) == (level, tenant) for each in line)

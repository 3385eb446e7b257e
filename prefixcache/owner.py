"""Whose blocks are in the tree, and in which order they would go."""

import heapq
from typing import Protocol

STALE = 16  # entries of nodes that are gone, below which nobody minds


class Leaf(Protocol):
    """What is known here of a node."""

    used: int

    @property
    def gone(self) -> bool:
        """Whether it is no longer in the tree."""
        ...


class Owner:
    """Counts blocks, and queues leaves by their last use.

    Entries are not moved when a leaf is used, locked, or gets a child: who pops one has to look again. A leaf that has
    gone leaves its entry behind; when those are more than half of all they are swept out, at O(1) for each.
    """

    def __init__(self, level: int = -1, name: str = "", cap: int | None = None) -> None:
        """`cap`: blocks that it may keep while others need some; None: any number."""
        self.place = level, name
        self.held = 0
        self._cap = cap
        self._queue: list[tuple[int, int, Leaf]] = []  # heap of (use when queued, tie-break, leaf)
        self._queued: dict[int, Leaf] = {}  # by id

    @property
    def excess(self) -> int:
        """Blocks beyond the cap."""
        return 0 if self._cap is None else max(0, self.held - self._cap)

    @property
    def queues(self) -> bool:
        """Whether there is anything to pop."""
        return bool(self._queued)

    def __contains__(self, leaf: Leaf) -> bool:
        return id(leaf) in self._queued

    def push(self, leaf: Leaf) -> None:
        """Unless it has an entry already."""
        if id(leaf) not in self._queued:
            self._queued[id(leaf)] = leaf
            heapq.heappush(self._queue, (leaf.used, id(leaf), leaf))

    def pop(self) -> tuple[int, Leaf]:
        """The leaf with the oldest use when queued, and that use. Raises IndexError where nothing is queued."""
        while True:
            used, _, leaf = heapq.heappop(self._queue)
            if not leaf.gone:
                del self._queued[id(leaf)]
                return used, leaf

    def drop(self, leaf: Leaf) -> None:
        """A leaf has gone."""
        self._queued.pop(id(leaf), None)
        if len(self._queue) > 2 * len(self._queued) + STALE:
            self._queue = [entry for entry in self._queue if not entry[2].gone]
            heapq.heapify(self._queue)

    def check(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        live = [leaf for _, _, leaf in self._queue if not leaf.gone]
        assert len(live) == len({id(leaf) for leaf in live}) == len(self._queued), "a node is queued twice"
        assert {id(leaf) for leaf in live} == self._queued.keys()
        assert all(used <= leaf.used for used, _, leaf in self._queue if not leaf.gone)
        assert len(self._queue) <= 2 * len(self._queued) + STALE + 1

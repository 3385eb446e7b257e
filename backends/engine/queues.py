"""Who runs and who waits, and what that takes in rows and blocks.

A sequence may start when everything that is known of it fits beside what the running ones still need: the rest of their
prompts and one block more for each of their answers. So none starts that would have to go again at once.
"""

from bisect import insort
from collections import Counter

from backends.engine.cache import BlockCache
from backends.engine.sequence import Level, Sequence
from backends.engine.waiting import WaitingQueue
from prefixcache.tree import Match


class Queues:
    """Moves sequences between waiting and running. Only running ones have blocks."""

    def __init__(self, cache: BlockCache, interactive_rows: int, share: int) -> None:
        """`interactive_rows`: the most in a step with an interactive sequence; `share`: blocks of one tenant while
        others wait."""
        self.running: list[Sequence] = []  # in the order of rank
        self.waiting = WaitingQueue()
        self.preemptions = 0
        self.queries = 0  # tokens looked up in the prefix cache, at every start
        self.hits = 0  # tokens found there
        self.share = share
        self.block_size = cache.block_size
        self._cache = cache
        self.interactive_rows = interactive_rows

    def rows(self) -> list[Sequence]:
        """The running sequences that are not paused: batch ones pause where they are too many for interactive ones."""
        return self.running[: self.interactive_rows] if self._interactive else self.running

    def has_room(self, level: Level, rows: int) -> bool:
        """Whether one more of that urgency may run, where `rows` may in general."""
        batch, _ = level
        few = min(rows, self.interactive_rows)
        if not batch:
            return self._interactive < few
        return len(self.running) < (few if self._interactive else rows)

    @property
    def _interactive(self) -> int:
        return sum(not sequence.batch for sequence in self.running)

    def lacking_blocks(self, sequence: Sequence, match: Match) -> int:
        """How many are missing for a waiting sequence to start from `match`; it may where that is not positive."""
        reserved = sum(self.reserve(each) for each in self.running)
        return self._cache.cost(sequence, match) + reserved - self._cache.available

    def exceeds_share(self, sequence: Sequence, match: Match, used: int) -> bool:
        """Whether its tenant, who has others running with `used` blocks, would have more than his share."""
        more = self._cache.span(len(sequence.ids)) - len(match.blocks)
        return 0 < used and used + more > self.share

    def blocks_by_tenant(self) -> Counter[str]:
        """What running sequences have and still need, shared ones counted for each."""
        used: Counter[str] = Counter()
        for sequence in self.running:
            used[sequence.tenant] += len(sequence.blocks) + self.reserve(sequence)
        return used

    def reserve(self, sequence: Sequence) -> int:
        """Blocks that a running sequence should find later: for the rest of its prompt, and for one block of answer."""
        return self._cache.missing(sequence, self._foreseen(sequence))

    def need(self, sequence: Sequence) -> int:
        """What a waiting sequence counts for its tenant once it runs, see `blocks_by_tenant`."""
        return self._cache.span(self._foreseen(sequence))

    def _foreseen(self, sequence: Sequence) -> int:
        """Tokens: what is known of it, and as many of its answer as a block has."""
        # The last token of an answer is never run, so nothing is kept for it.
        length = min(len(sequence.ids) + self._cache.block_size, sequence.max_length - 1)
        return max(length, len(sequence.ids))  # of a prompt without an answer all are run

    def tenants(self) -> set[str]:
        return self.waiting.tenants() | {sequence.tenant for sequence in self.running}

    def match(self, sequence: Sequence) -> Match:
        """What the cache has of a waiting one."""
        return self._cache.match(sequence)

    def start(self, sequence: Sequence, match: Match) -> None:
        """Let one that waits run, from what the cache has of it."""
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_rank)
        sequence.running = True
        self._cache.adopt(sequence, match)
        self.queries += len(sequence.ids)
        self.hits += sequence.computed
        if sequence.scheduled is None:
            sequence.cached = sequence.computed

    def preempt(self, sequence: Sequence) -> None:
        """Back to waiting, with its answer so far; what it has computed stays cached as long as it can."""
        self.stop(sequence, keep=True)
        self.waiting.add(sequence)
        self.preemptions += 1

    def stop(self, sequence: Sequence, *, keep: bool) -> None:
        """A running one runs no longer. `keep`: what it has computed stays cached."""
        self.running.remove(sequence)
        sequence.running = False
        self._cache.release(sequence, keep=keep)

    def check(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        self.waiting.check()
        assert self.running == sorted(self.running, key=_rank)
        assert self._interactive <= self.interactive_rows
        assert all(sequence.running for sequence in self.running)
        for sequence in self.waiting:
            assert not sequence.running and not sequence.blocks
            assert sequence.node is None and not sequence.computed
        self._cache.check(self.running)


def _rank(sequence: Sequence) -> tuple[Level, int]:
    return sequence.rank

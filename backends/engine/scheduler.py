"""What the next step runs. Pure bookkeeping: no clock, no device, no I/O.

One budget of tokens per step. Running sequences come first, those that decode before those still in their prompt, so
that a long prompt never stalls an answer; what is left admits waiting ones by (priority, arrival).

Memory. A sequence is admitted when everything that is known of it fits beside what the running ones still need: the
rest of their prompts and one block more for each of their answers. So none starts that would have to go again at
once. When answers have grown over what there is, the running sequence that ranks last goes back to waiting, at its old
rank and with its answer so far; its blocks stay cached until others need them. The sequence that ranks first can so
claim all memory, which is enough for any that was accepted: it always gets on.
"""

from bisect import insort
from collections.abc import Iterable

from backends.engine.cache import BlockCache
from backends.engine.sequence import Sequence
from prefixcache.tree import Match

Scheduled = tuple[Sequence, int]  # and how many of its tokens run in this step: at least one


class Scheduler:
    """Decides over two queues, both in the order of rank. Only sequences in `running` have blocks."""

    def __init__(self, cache: BlockCache, token_budget: int, max_sequences: int) -> None:
        """Raises ValueError when a limit is not positive."""
        for name, limit in (("token_budget", token_budget), ("max_sequences", max_sequences)):
            if limit < 1:
                raise ValueError(f"{name}: {limit} is not positive")
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.preemptions = 0
        self.queries = 0  # tokens looked up in the prefix cache, at every admission
        self.hits = 0  # tokens found there
        self._cache = cache
        self._token_budget = token_budget
        self._max_sequences = max_sequences

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait. All its tokens and blocks must fit into the whole cache."""
        insort(self.waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence, *, keep: bool) -> None:
        """Forget a sequence, wherever it is. `keep`: what it has computed stays cached."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._cache.release(sequence, keep=keep)
        else:
            self.waiting.remove(sequence)

    def schedule(self) -> list[Scheduled]:
        """The rows of the next step, their blocks in place. Empty only when nothing runs or waits."""
        self._restart_outgrown()
        scheduled = share(self.running, self._token_budget)
        preempting = self._shortage(scheduled) > 0
        while self._shortage(scheduled) > 0:
            self._preempt(self.running.pop())
            scheduled = share(self.running, self._token_budget)
        for sequence, count in scheduled:
            self._cache.extend(sequence, sequence.computed + count)
        if not preempting:
            self._admit(scheduled)
        return scheduled

    def _restart_outgrown(self) -> None:
        for sequence in [sequence for sequence in self.running if sequence.outgrown]:
            self.running.remove(sequence)
            self._cache.release(sequence, keep=True)
            sequence.stretch()
            self.add(sequence)

    def _shortage(self, scheduled: Iterable[Scheduled]) -> int:
        """How many blocks the rows lack. Never positive for one sequence alone."""
        missing = sum(
            self._cache.missing(sequence, sequence.computed + count) for sequence, count in scheduled
        )
        return missing - self._cache.available

    def _preempt(self, sequence: Sequence) -> None:
        self._cache.release(sequence, keep=True)
        self.add(sequence)
        self.preemptions += 1

    def _admit(self, scheduled: list[Scheduled]) -> None:
        """Start waiting sequences, in order, as long as budget, rows and blocks last."""
        budget = self._token_budget - sum(count for _, count in scheduled)
        reserved = sum(self._reserve(sequence) for sequence in self.running)
        while self.waiting and budget and len(self.running) < self._max_sequences:
            sequence = self.waiting[0]
            match = self._cache.match(sequence)
            if self._cache.cost(sequence, match) + reserved > self._cache.available:
                return
            self._start(self.waiting.pop(0), match)
            count = min(sequence.runnable, budget)
            self._cache.extend(sequence, sequence.computed + count)
            scheduled.append((sequence, count))
            budget -= count
            reserved += self._reserve(sequence)

    def _start(self, sequence: Sequence, match: Match) -> None:
        insort(self.running, sequence, key=_rank)
        self._cache.adopt(sequence, match)
        self.queries += len(sequence.ids)
        self.hits += sequence.computed
        if sequence.scheduled is None:
            sequence.cached = sequence.computed

    def _reserve(self, sequence: Sequence) -> int:
        """Blocks that a running sequence should find later: for the rest of its prompt, and for one block of answer."""
        # The last token of an answer is never run, so nothing is kept for it.
        length = min(len(sequence.ids) + self._cache.block_size, sequence.max_length - 1)
        length = max(length, len(sequence.ids))  # of a prompt without an answer all are run
        return self._cache.missing(sequence, length)

    def check(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        for queue in (self.running, self.waiting):
            assert queue == sorted(queue, key=_rank)
        assert len(self.running) <= self._max_sequences
        assert not {id(sequence) for sequence in self.running} & {id(sequence) for sequence in self.waiting}
        for sequence in self.waiting:
            assert not sequence.blocks and sequence.node is None and not sequence.computed
        self._cache.check(self.running)


def share(running: Iterable[Sequence], budget: int) -> list[Scheduled]:
    """Divide a budget of tokens among running sequences, given in the order of rank: who decodes goes first."""
    scheduled = []
    for sequence in sorted(running, key=_in_prompt):
        count = min(sequence.runnable, budget)
        if count:
            scheduled.append((sequence, count))
            budget -= count
    return scheduled


def _in_prompt(sequence: Sequence) -> bool:
    return sequence.remaining > 1


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank

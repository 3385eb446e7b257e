"""What the next step runs. Pure bookkeeping: no clock, no device, no I/O.

Running sequences that decode come first, one token each and then their drafts, so that a prompt never stalls an
answer; how prompts share what is left, running and waiting ones, says `division`. How many run at a time depends on
the queue, see `bands`. With an interactive sequence among them it is never more than a few: the rest, of batch traffic,
then pauses with all that it has computed.

Memory. Who may start says `queues`. When answers have grown over what there is, the running sequence that ranks last
goes back to waiting, at its old rank and with its answer so far; its blocks stay cached until others need them. The
sequence that ranks first can so claim all memory, which is enough for any that was accepted: it always gets on. Batch
sequences go likewise for interactive ones that wait, and those of a tenant who has more than his share of the blocks
for those of one who has less. No sequence goes for a draft.
"""

from collections import Counter
from collections.abc import Iterable

from backends.engine.bands import Bands
from backends.engine.cache import BlockCache
from backends.engine.division import NOBODY, Newcomers, Scheduled, divide, work_of
from backends.engine.draft import Draft
from backends.engine.entrance import Entrance
from backends.engine.pace import CostModel, StepBudget
from backends.engine.queues import Queues
from backends.engine.sequence import Sequence
from backends.engine.turns import Turns
from backends.engine.waiting import WaitingQueue
from backends.wire import EngineConfig

QUANTUM = 64  # tokens of a turn


class Scheduler:
    """Decides over who runs and who waits."""

    def __init__(self, cache: BlockCache, config: EngineConfig, model: CostModel) -> None:
        """Raises ValueError when a limit is not positive, or the bands make no sense."""
        for name in ("token_budget", "max_sequences", "interactive_sequences"):
            if getattr(config, name) < 1:
                raise ValueError(f"{name}: {getattr(config, name)} is not positive")
        self.bands = Bands(config.bands, config.max_sequences)
        share = max(1, int(config.tenant_share * cache.total))
        self.queues = Queues(cache, min(config.interactive_sequences, config.max_sequences), share)
        self._cache = cache
        self.step_budget = 0.0  # seconds that the last step was given; 0: nothing could be foretold
        self._model = model
        self._entrance = Entrance(self.queues)
        self._turns = Turns(QUANTUM)
        self._token_budget = config.token_budget
        self._budget_set = None if config.step_budget_ms is None else config.step_budget_ms / 1000

    @property
    def running(self) -> list[Sequence]:
        """In the order of rank."""
        return self.queues.running

    @property
    def waiting(self) -> WaitingQueue:
        return self.queues.waiting

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait. All its tokens and blocks must fit into the whole cache."""
        self._turns.enter(sequence.tenant, sequence.weight)
        self.waiting.add(sequence)

    def remove(self, sequence: Sequence, *, keep: bool) -> None:
        """Forget a sequence, wherever it is. `keep`: what it has computed stays cached."""
        if sequence.running:
            self.queues.stop(sequence, keep=keep)
        else:
            self.waiting.remove(sequence)
        self._turns.keep(self.queues.tenants())

    def free_rows(self, *, batch: bool) -> int:
        """How many more could run now."""
        rows = self.bands.rows if batch else min(self.bands.rows, self.queues.interactive_rows)
        return max(0, rows - len(self.running))

    def schedule(self) -> list[Scheduled]:
        """The rows of the next step, their blocks in place. Empty only when nothing runs or waits."""
        self._restart_outgrown()
        self.bands.look(len(self.waiting))
        self._turns.waiting = frozenset(self.waiting.tenants())
        self._make_room()
        turns = self._turns.copy()
        scheduled = self._divide(turns)
        if self._shortage(scheduled) > 0:
            for sequence in self.running:
                sequence.draft = Draft()
            turns = self._turns.copy()
            scheduled = self._divide(turns)
        preempting = self._shortage(scheduled) > 0
        while self._shortage(scheduled) > 0:
            self.queues.preempt(self.running[-1])
            turns = self._turns.copy()
            scheduled = self._divide(turns)
        if not preempting and self.waiting:
            turns = self._turns
            self._entrance.open(self.bands.rows)
            scheduled = self._divide(turns, self._entrance)
        self._turns = turns
        scheduled = self._calm(scheduled)
        for sequence, count in scheduled:
            self._cache.extend(sequence, sequence.computed + count)
        self._settle(scheduled)
        return scheduled

    def _divide(self, turns: Turns, newcomers: Newcomers = NOBODY) -> list[Scheduled]:
        """Charges `turns`."""
        rows = self.queues.rows()
        decoding = self._decoding(rows)
        for sequence, count in decoding:
            turns.charge(sequence.tenant, count)
        work = work_of(decoding)
        budget = StepBudget(
            self._model,
            work,
            tokens=self._token_budget - work.tokens,
            target=self.bands.target(self.bands.index) / 2 if self._budget_set is None else self._budget_set,
            stretch=self._budget_set is None,
        )
        self.step_budget = budget.seconds or 0.0
        return decoding + divide(rows, budget, turns, newcomers)

    def _decoding(self, rows: Iterable[Sequence]) -> list[Scheduled]:
        """Those that get their next token, with their drafts: these have half of what is left behind the tokens."""
        sequences = [sequence for sequence in rows if not sequence.in_prompt][: self._token_budget]
        spare = (self._token_budget - len(sequences)) // 2
        scheduled = []
        for sequence in sequences:
            drafted = min(len(sequence.draft.tokens), spare)
            spare -= drafted
            scheduled.append((sequence, 1 + drafted))
        return scheduled

    def _calm(self, scheduled: list[Scheduled]) -> list[Scheduled]:
        """Without the last batch rows, where they are too many beside an interactive one that has just started."""
        if all(sequence.batch for sequence, _ in scheduled):
            return scheduled
        return sorted(scheduled, key=lambda row: row[0].batch)[: self.queues.interactive_rows]

    def _settle(self, scheduled: Iterable[Scheduled]) -> None:
        """Nobody owes for a step in which at most one tenant wanted more than he got."""
        counts = {sequence.number: count for sequence, count in scheduled}
        unserved = {each.tenant for each in self.running if each.remaining > counts.get(each.number, 0)}
        if len(unserved | self.waiting.tenants()) < 2:
            self._turns.settle()

    def _restart_outgrown(self) -> None:
        for sequence in [sequence for sequence in self.running if sequence.outgrown]:
            self.queues.stop(sequence, keep=True)
            sequence.stretch()
            self.add(sequence)

    def _shortage(self, scheduled: Iterable[Scheduled]) -> int:
        """How many blocks the rows lack. Never positive for one sequence alone."""
        missing = sum(
            self._cache.missing(sequence, sequence.computed + count) for sequence, count in scheduled
        )
        return missing - self._cache.available

    def _make_room(self) -> None:
        """Preempt for the next of those that wait where others have less right to run, if that is enough for it."""
        self._entrance.open(self.bands.rows)
        head = self._entrance.first(self._turns.next)
        if head is None:
            return
        lacking = self.queues.lacking_blocks(head, self._entrance.match(head))
        used = self.queues.blocks_by_tenant()
        victims = []
        for sequence in reversed(self.running):
            if lacking > 0 and self._yields(sequence, head, used):
                gain = len(sequence.blocks) - sequence.shared + self.queues.reserve(sequence)
                used[sequence.tenant] -= gain
                lacking -= gain
                victims.append(sequence)
        if lacking <= 0:
            for sequence in victims:
                self.queues.preempt(sequence)

    def _yields(self, sequence: Sequence, head: Sequence, used: Counter[str]) -> bool:
        """Whether a running sequence goes for one that waits, given the blocks in use by tenant.

        Both count alike, so that of two that exceed a share neither goes for the other, again and again.
        """
        if sequence.batch and not head.batch:
            return True
        share = self.queues.share
        return (
            sequence.level >= head.level
            and used[sequence.tenant] > share
            and used[head.tenant] + self.queues.need(head) <= share
        )

    def check(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        self.queues.check()

"""Asks the drafters for what the next step is to verify, and keeps account of what came of it."""

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager
from functools import partial
from typing import Any

from backends.engine.batch import Batch
from backends.engine.cache import BlockCache
from backends.engine.division import Scheduled
from backends.engine.outcome import Outcome
from backends.engine.pace import CostModel, Work
from backends.engine.sequence import Sequence
from backends.engine.speculation.account import Account
from backends.engine.speculation.costs import Mean, StepCosts
from backends.engine.speculation.drafter import Drafter, Reading, Wish
from backends.engine.speculation.gate import Gate
from backends.wire import DraftMethod, GateState, Speculation

STALE = 32  # steps with drafts, after which one runs without: what it costs is what all else is measured by
READING = 0.02  # steps that it takes to read a token, before that was measured
TYPICAL = 128.0  # tokens of an answer, before one has ended

_log = logging.getLogger(__name__)

Key = tuple[DraftMethod, str]  # and the task


class Speculator:
    """A gate for each way to draft and each task. Several ways are asked in order, until one has something to say."""

    def __init__(
        self,
        config: Speculation,
        drafters: Several[Drafter],
        model: CostModel,
        cache: BlockCache,
        timer: Callable[[], float],
    ) -> None:
        """`model` predicts what steps take. No draft is longer than a block: so much room every sequence has."""
        self._config = config
        self._drafters = list(drafters)
        self._model = model
        self._plain = (
            CostModel()
        )  # of steps without drafts, and taught by no others: they are what all is measured by
        self._cache = cache
        self._timer = timer
        self._most = min(config.max_tokens, cache.block_size)
        self._accounts: defaultdict[str, Account] = defaultdict(Account)  # by task
        self._gates: dict[Key, Gate] = {}
        self._costs = {drafter.method: StepCosts() for drafter in drafters}
        # Steps for a token.
        self._reading: defaultdict[DraftMethod, Mean] = defaultdict(lambda: Mean(READING))
        self._lengths: defaultdict[str, Mean] = defaultdict(lambda: Mean(TYPICAL))  # of answers, by task
        self._asked: list[Sequence] = []  # those that may have a draft
        self._wishes: list[tuple[Drafter, list[Wish]]] = []  # for the next step
        self._authors: dict[int, Key] = {}  # of the drafts of the next step, by the sequence's number
        self._since_plain: Counter[int] = Counter()  # steps, by their rows
        self._crowded = False
        self._drafts = self._drafted = 0
        self._accepted = [0] * self._most

    def prepare(self, running: Several[Sequence], *, idle: bool) -> None:
        """See for whom of those that are to get their next token something is to be drafted. `idle`: nobody waits."""
        self._withdraw()
        if not self._drafters:
            return
        decoding = [sequence for sequence in running if not sequence.in_prompt]
        self._crowded = len(decoding) > self._config.max_sequences
        due = self._config.gated and self._lacks_plain(len(decoding))
        asked = [] if self._crowded or due else [sequence for sequence in decoding if sequence.draftable]
        self._wishes = [(drafter, self._wanted(drafter, asked)) for drafter in self._drafters]
        self._asked = asked
        for sequence in asked:
            self._accounts[sequence.task].allow()
            sequence.expect([])  # so that one that drafts token by token does so in its grammar
        idle = idle and len(decoding) == len(running)
        for drafter, wishes in self._wishes:
            with self._surviving(drafter):
                began = self._timer()
                reading = drafter.prepare(wishes, self._cache, idle=idle)
                if reading is not None and self._config.gated:
                    self._pay(drafter.method, reading, self._timer() - began)

    def _lacks_plain(self, rows: int) -> bool:
        """Whether a step of so many rows has to go without drafts, so that it is known what these cost."""
        return self._since_plain[rows] >= STALE or self._plain.predict(_work([0] * rows, 0)) is None

    def _pay(self, method: DraftMethod, reading: Reading, seconds: float) -> None:
        """For what a drafter has read; also learn what that takes."""
        sequence, tokens = reading
        plain = self._plain.predict(_work([sequence.computed], 0))
        if plain and seconds > 0:
            self._reading[method].add(seconds / plain / tokens)
        self._gate(method, sequence.task).pay(tokens * self._reading[method].value)

    def _gate(self, method: DraftMethod, task: str) -> Gate:
        key = method, task
        if key not in self._gates:
            self._gates[key] = Gate(self._most, self._accounts[task])
        return self._gates[key]

    def _withdraw(self) -> None:
        """What is left of the last drafts, of sequences that were not run, or stand aside by now."""
        for sequence in self._asked:
            sequence.expect([])
        self._asked = []
        self._authors.clear()

    @contextmanager
    def _surviving(self, drafter: Drafter) -> Iterator[None]:
        """One that fails is never asked again: what it has half done is of no use, and no answer needs it."""
        try:
            yield
        except Exception:
            _log.exception("drafting by %s failed, the engine goes on without", drafter.method)
            self._drafters.remove(drafter)
            for wishes in (wishes for each, wishes in self._wishes if each is drafter):
                wishes.clear()

    def _wanted(self, drafter: Drafter, sequences: Iterable[Sequence]) -> list[Wish]:
        wishes = []
        for sequence in sequences:
            wanted = self._most
            if self._config.gated:
                left = min(sequence.max_length - len(sequence.ids), self._lengths[sequence.task].value)
                price = partial(self._price, drafter, sequence)
                wanted = self._gate(drafter.method, sequence.task).ask(price, left)
            if wanted:
                wishes.append((sequence, min(wanted, sequence.draftable)))
        return wishes

    def _price(self, drafter: Drafter, sequence: Sequence) -> float:
        """Steps that it takes to read what has been said since it last drafted for the sequence."""
        return self._reading[drafter.method].value * drafter.lag(sequence, self._cache)

    def propose(self) -> None:
        """Give a draft to those for whom one is wanted, as far as a drafter has something to say."""
        for drafter, wishes in self._wishes:
            rest = [wish for wish in wishes if wish[0].number not in self._authors]
            drafts: list[list[int]] = [[] for _ in rest]
            with self._surviving(drafter):
                drafts = drafter.propose(rest, self._cache)
            for (sequence, wanted), tokens in zip(rest, drafts, strict=True):
                sequence.expect(tokens[:wanted])
                if sequence.draft.tokens:
                    self._authors[sequence.number] = drafter.method, sequence.task
        self._wishes = []

    def learn(
        self, scheduled: list[Scheduled], batch: Batch, outcomes: list[Outcome], work: Work, seconds: float
    ) -> None:
        """A step has run, and took so long with the drafting before it. Before the sequences are told."""
        if not self._drafters:
            return
        used: set[Key] = set()
        for (sequence, _), row, outcome in zip(scheduled, batch.rows, outcomes, strict=True):
            if row.draft:
                used.add(self._count(sequence, len(row.draft), len(outcome.tokens) - 1))
        if work.kind == "prompt":
            return
        starts = [sequence.computed for sequence, _ in scheduled]
        self._since_plain[work.rows] = self._since_plain[work.rows] + 1 if work.drafted else 0
        if not work.drafted:
            self._plain.learn(work, seconds)
        plain = self._plain.predict(_work(starts, 0))
        for method in {method for method, _ in used} or self._costs:
            self._costs[method].learn(work.rows, work.drafted, seconds, plain)
        for method, task in used:
            tried = self._costs[method].tried(work.rows) // work.rows
            self._gate(method, task).decide(partial(self._cost, method, starts), tried)

    def _count(self, sequence: Sequence, drafted: int, accepted: int) -> Key:
        key = self._authors[sequence.number]
        self._gate(*key).count(drafted, accepted)
        self._drafts += 1
        self._drafted += drafted
        for position in range(accepted):
            self._accepted[position] += 1
        return key

    def _cost(self, method: DraftMethod, starts: list[int], drafted: int) -> float:
        """Of so many tokens for each row, in steps without; as predicted where it was never measured."""
        measured = self._costs[method].ratio(len(starts), len(starts) * drafted)
        if measured is not None:
            return measured
        plain, more = self._model.predict(_work(starts, 0)), self._model.predict(_work(starts, drafted))
        return more / plain if plain and more else math.inf

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""
        said = len(sequence.ids) - sequence.prompt_length
        self._lengths[sequence.task].add(said)
        for drafter in self._drafters:
            drafter.forget(sequence)

    def fields(self) -> dict[str, Any]:
        """Of Load."""
        return {
            "drafts": self._drafts,
            "drafted_tokens": self._drafted,
            "accepted_tokens": sum(self._accepted),
            "accepted_by_position": tuple(self._accepted) if self._drafters else (),
            "gates": tuple(
                GateState(
                    method=method,
                    task=task,
                    tokens=0 if self._crowded else gate.tokens,
                    acceptance=gate.acceptance,
                    gain=gate.gain,
                    reason="crowded" if self._crowded else gate.reason,
                )
                for (method, task), gate in self._gates.items()
            ),
        }


def _work(starts: list[int], drafted: int) -> Work:
    work = Work()
    for start in starts:
        work = work.and_span(start, 1 + drafted, drafted)
    return work

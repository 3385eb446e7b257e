"""Who gets the tokens of one step that are for prompts.

Those of running sequences and those of who still waits: the most urgent level first, in a level by turns among
tenants. A tenant's prompts come by arrival, but half of the budget goes to the shortest of the later ones, so that
short requests need not wait for the end of long ones, and long ones get on in any case.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Protocol

from backends.engine.pace import StepBudget, Work
from backends.engine.sequence import Level, Sequence
from backends.engine.turns import Turns

Scheduled = tuple[Sequence, int]  # and how many tokens run of it in this step: at least one, its draft's last


def work_of(scheduled: Iterable[Scheduled]) -> Work:
    """What it is to run so much of each."""
    work = Work()
    for sequence, count in scheduled:
        work = work.and_span(sequence.computed, count, drafted=max(0, count - sequence.remaining))
    return work


class Newcomers(Protocol):
    """Those who wait, and may begin in this step."""

    def levels(self) -> list[Level]: ...

    def heads(self, level: Level) -> Mapping[str, Sequence]:
        """By tenant who would be next; only those that have not been refused in this step."""
        ...

    def lacking(self, sequence: Sequence) -> int:
        """Tokens that are to be run of it, were it started now."""
        ...

    def start(self, sequence: Sequence) -> bool:
        """Whether it runs now; if so, `computed` says what it has found in the cache."""
        ...


class Nobody:
    """Newcomers where none are wanted."""

    def levels(self) -> list[Level]:
        return []

    def heads(self, level: Level) -> Mapping[str, Sequence]:
        return {}

    def lacking(self, sequence: Sequence) -> int:
        raise NotImplementedError

    def start(self, sequence: Sequence) -> bool:
        raise NotImplementedError


NOBODY = Nobody()


def divide(
    rows: Iterable[Sequence], budget: StepBudget, turns: Turns, newcomers: Newcomers = NOBODY
) -> list[Scheduled]:
    """Give out what the budget has for prompts: to `rows`, running ones in the order of rank, and to newcomers.

    Charges `turns`.
    """
    prompts: dict[Level, dict[str, list[Sequence]]] = defaultdict(lambda: defaultdict(list))
    for sequence in rows:
        if sequence.in_prompt:
            prompts[sequence.level][sequence.tenant].append(sequence)
    scheduled: list[Scheduled] = []
    for level in sorted(prompts.keys() | set(newcomers.levels())):
        scheduled += _LevelDivision(level, prompts[level], budget, turns, newcomers).run()
    return scheduled


class _LevelDivision:
    """Among sequences of the same urgency."""

    def __init__(
        self,
        level: Level,
        prompts: dict[str, list[Sequence]],
        budget: StepBudget,
        turns: Turns,
        newcomers: Newcomers,
    ) -> None:
        self._level = level
        self._prompts = prompts
        self._budget = budget
        self._turns = turns
        self._newcomers = newcomers
        self._halves: dict[str, int] = {}  # tokens left to each tenant's short prompts

    def run(self) -> list[Scheduled]:
        scheduled: list[Scheduled] = []
        while self._budget.tokens > 0:
            heads = self._newcomers.heads(self._level)
            contenders = {tenant for tenant, line in self._prompts.items() if line} | heads.keys()
            if not contenders:
                break
            tenant = self._turns.next(contenders)
            sequence, most = self._choose(tenant, heads.get(tenant))
            count = self._budget.affords(len(sequence.ids) - self._lacking(sequence), most)
            if not count:
                break
            if sequence in self._prompts[tenant]:
                self._prompts[tenant].remove(sequence)
            elif not self._newcomers.start(sequence):
                continue
            self._budget.take(sequence.computed, count)
            self._turns.charge(tenant, count)
            scheduled.append((sequence, count))
        return scheduled

    def _choose(self, tenant: str, head: Sequence | None) -> tuple[Sequence, int]:
        """A tenant's next prompt, and how many of its tokens may run at most."""
        line = self._prompts[tenant] + ([] if head is None else [head])
        first = line[0]
        half = self._halves.setdefault(tenant, self._budget.affords(0, self._budget.tokens) // 2)
        shortest = min(line, key=self._lacking)
        if shortest is first or not half:
            return first, min(self._lacking(first), first.runnable)
        most = min(self._lacking(shortest), shortest.runnable, half)
        self._halves[tenant] -= most
        return shortest, most

    def _lacking(self, sequence: Sequence) -> int:
        """Tokens that are to be run before its next can be sampled."""
        return sequence.remaining if sequence.running else self._newcomers.lacking(sequence)

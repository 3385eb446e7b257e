"""Whether drafting pays, and how many tokens: by how many are accepted and by what a step with them costs.

If each drafted token is accepted with probability α given those before it, a step of n of them yields
E = 1 + α + … + αⁿ = (1 - αⁿ⁺¹) / (1 - α) tokens (Leviathan, Kalman, Matias: arXiv:2211.17192, section 3.1), and is
worth it if that is more than its cost in steps without drafts.

A gate begins closed, and probes. It opens where a gain is likely and nothing is owed, goes up one rung at a time to
what has not been tried, and closes when nothing is gained any more. A closed one drafts once in a while, less and less
often, so that it notices when an answer becomes foreseeable.

What drafts cost is taken from an `Account`, which all gates of a task share: so an engine that drafts is never much
slower than one that does not. A model that drafts has to read for it what has been said since, which is paid for too;
an open gate has it read where the rest of the answer is likely to earn twice as much.
"""

import math
from collections.abc import Callable

from backends.engine.speculation.account import Account
from backends.wire import GateReason

RUNGS = (1, 2, 3, 4, 6, 8, 12, 16)  # tokens of a draft
PROBES = (2, 4)  # tokens of one that is to find out, in turn: two points make a line
OPEN, CLOSED = 1.05, 1.0  # expected gains from which on it opens, and below which it closes
BETTER = 1.02  # times as much gained as now has to be expected of another number
HOPED = 0.5  # of what an answer may still earn is spent on reading, which is paid at once
EVIDENCE = 4  # drafts before anything is decided
SOONEST, LATEST = 64, 1024  # times that a closed gate is asked between two probes
FADE, FADE_CLOSED = 0.95, 0.9  # of what is known, with each draft
PRIOR = 1.0, 2.0  # accepted tokens and trials that a gate begins with

Cost = Callable[[int], float]  # of a step with drafts of so many tokens, in steps without


def expected_tokens(acceptance: float, drafted: int) -> float:
    """E above. Of `drafted` tokens, each accepted with that probability."""
    if acceptance >= 1:
        return drafted + 1.0
    return float((1 - acceptance ** (drafted + 1)) / (1 - acceptance))


def gain(acceptance: float, drafted: int, cost: Cost) -> float:
    """Times as many tokens in the same time as without drafts."""
    return expected_tokens(acceptance, drafted) / cost(drafted) if drafted else 1.0


def choose(acceptance: float, cost: Cost, current: int, most: int) -> int:
    """How many tokens to draft, at most `most`, where so far it has been `current`; 0: none."""
    rungs = [rung for rung in RUNGS if rung <= most]
    if not rungs:
        return 0
    best = max(rungs, key=lambda rung: gain(acceptance, rung, cost))
    promised, present = gain(acceptance, best, cost), gain(acceptance, current, cost)
    if promised < (CLOSED if current else OPEN):
        return 0
    return best if current > most or promised > BETTER * present else current


class Gate:
    """Of one way to draft, for one kind of task."""

    def __init__(self, most: int, account: Account) -> None:
        """`most`: tokens of a draft."""
        self.tokens = 0  # that are drafted at a time; 0: it is closed
        self.reason: GateReason = "probing"
        self.gain = 1.0  # expected of what is drafted
        self.account = account
        self._most = most
        self._accepted, self._trials = PRIOR
        self._drafts = 0
        self._unpaid: list[tuple[int, int]] = []  # drafted and accepted tokens
        self._earned = 0.0  # steps, since it opened
        self._countdown, self._interval = 0, SOONEST

    @property
    def acceptance(self) -> float:
        """Of a drafted token, given those before it."""
        return self._accepted / self._trials

    def ask(self, price: Callable[[], float] = lambda: 0.0, left: float = math.inf) -> int:
        """How many tokens to draft now for one more sequence.

        `price`: steps that it takes the drafter to read what it has to read first. `left`: tokens that the answer is
        likely to go on for.
        """
        if self.tokens:
            return self.tokens if price() <= HOPED * left * (1 - 1 / self.gain) else 0
        self._countdown -= 1
        if self._countdown > 0 or self.account.empty or price() > self.account.balance:
            return 0
        return min(PROBES[self._drafts % len(PROBES)], self._most)

    def pay(self, steps: float) -> None:
        """So much was read for it."""
        self._earn(-steps)
        self._close_if_overdrawn()

    def count(self, drafted: int, accepted: int) -> None:
        """A draft was verified. What comes after its first wrong token was never on trial."""
        fade = FADE if self.tokens else FADE_CLOSED
        self._accepted = fade * self._accepted + accepted
        self._trials = fade * self._trials + min(accepted + 1, drafted)
        self._drafts += 1
        self._unpaid.append((drafted, accepted))
        if not self.tokens and self._drafts >= EVIDENCE and accepted < drafted:
            self._back_off()

    def decide(self, cost: Cost, tried: int) -> None:
        """After drafts were counted. `tried`: the most tokens of a draft whose cost has been measured."""
        self._settle(cost)
        self._close_if_overdrawn()
        if self.account.overdrawn or self._drafts < EVIDENCE:
            return
        reach = next((rung for rung in RUNGS if rung > tried), RUNGS[-1])
        before, self.tokens = self.tokens, choose(self.acceptance, cost, self.tokens, min(reach, self._most))
        if self.tokens and not before:
            self._earned = 0.0
        elif before and not self.tokens:
            self._close()
        elif not choose(1.0, cost, 0, self._most):  # even if all of the last one was accepted
            self._countdown = max(self._countdown, self._interval)
        self.gain = gain(self.acceptance, self.tokens, cost)
        self.reason = "pays" if self.tokens else "unprofitable"

    def _settle(self, cost: Cost) -> None:
        """A draft saves the tokens that were accepted, and costs what the step takes longer: as far as is known no more
        than to run its tokens one by one."""
        for drafted, accepted in self._unpaid:
            self._earn(1 + accepted - min(cost(drafted), 1.0 + drafted))
        self._unpaid.clear()

    def _earn(self, steps: float) -> None:
        self.account.earn(steps)
        self._earned += steps

    def _close_if_overdrawn(self) -> None:
        if self.tokens and self.account.overdrawn:
            self._close()

    def _close(self) -> None:
        """If it had better never been opened it waits longer for the next time."""
        self.tokens, self.gain, self.reason = 0, 1.0, "unprofitable"
        if self._earned > 0:
            self._interval = SOONEST
        self._back_off()

    def _back_off(self) -> None:
        self._countdown, self._interval = self._interval, min(2 * self._interval, LATEST)

"""What the attempts of one request may cost at worst, and how far it may be handed on, decided purely.

A tier whose answers are judged may hand a request on to any dearer one: the next one may be down, or expected to do no
better. Each attempt counts then, as far as the rule of billing says. A chain is no longer than its tenant's attempts
and the most that a request may cost allow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from gateway.limits import NOTHING, Amount


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A tier that a request may run on: what an attempt there takes at most, and whether its answer is judged."""

    tier: str
    amount: Amount
    judged: bool
    attempts: int  # of a request that begins here


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The tiers that one request may run on, the cheapest first, at least one. `limit`: in billionths of money;
    `whole`: all attempts are charged, not the last one alone."""

    links: Sequence[Link]
    limit: int | None
    whole: bool

    def worst(self) -> Amount:
        """What the request takes at most, wherever it begins."""
        return _most([self._charged(path) for path in self.paths()])

    def provides(self, wanting: Sequence[str], tier: str) -> bool:
        """Whether the tier may answer where the answers of `wanting` were not good enough: within the attempts, within
        what is reserved, and within what one request may cost."""
        by_name = {link.tier: link for link in self.links}
        if len(wanting) >= by_name[wanting[0]].attempts:
            return False
        charged = self._charged([by_name[name] for name in (*wanting, tier)])
        return self._affordable(charged) and _most([charged, self.worst()]) == self.worst()

    def paths(self) -> Iterator[Sequence[Link]]:
        """All that may answer one after the other, each dearer than the one before."""
        for at, first in enumerate(self.links):
            yield from self._from((first,), self.links[at + 1 :])

    def _from(self, path: tuple[Link, ...], dearer: Sequence[Link]) -> Iterator[Sequence[Link]]:
        yield path
        if not path[-1].judged or len(path) >= path[0].attempts:
            return
        for at, link in enumerate(dearer):
            if self._affordable(self._charged((*path, link))):
                yield from self._from((*path, link), dearer[at + 1 :])

    def _charged(self, path: Sequence[Link]) -> Amount:
        return sum((link.amount for link in path), NOTHING) if self.whole else path[-1].amount

    def _affordable(self, amount: Amount) -> bool:
        return self.limit is None or amount.money <= self.limit


def _most(amounts: Sequence[Amount]) -> Amount:
    return Amount(
        tokens=max(amount.tokens for amount in amounts),
        input=max(amount.input for amount in amounts),
        output=max(amount.output for amount in amounts),
        money=max(amount.money for amount in amounts),
    )

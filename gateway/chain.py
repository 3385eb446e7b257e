"""What the attempts of one request may cost at worst, and how far it may be handed on, decided purely.

A tier whose answers are judged may hand a request on to any dearer one: the next one may be down, or expected to do no
better. Each attempt counts then, as far as the rule of billing says. A chain is no longer than its tenant's attempts
and the most that a request may cost allow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from gateway.limits import Amount


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
        return _most([charged for _, charged in self.paths()])

    def provides(self, wanting: Sequence[str], tier: str) -> bool:
        """Whether the tier may answer where the answers of `wanting` were not good enough: within the attempts, within
        what is reserved, and within what one request may cost."""
        by_name = {link.tier: link for link in self.links}
        if len(wanting) >= by_name[wanting[0]].attempts:
            return False
        charged = by_name[tier].amount
        if self.whole:
            charged = sum((by_name[name].amount for name in wanting), charged)
        return self._affordable(charged) and _most([charged, worst := self.worst()]) == worst

    def paths(self) -> Iterator[tuple[Sequence[Link], Amount]]:
        """All that may answer one after the other, each dearer than the one before, and what they take together."""
        for at, first in enumerate(self.links):
            if first.judged:
                yield from self._from((first,), first.amount, self.links[at + 1 :])
            else:
                yield (first,), first.amount

    def _from(
        self, path: tuple[Link, ...], charged: Amount, dearer: Sequence[Link]
    ) -> Iterator[tuple[Sequence[Link], Amount]]:
        yield path, charged
        if not path[-1].judged or len(path) >= path[0].attempts:
            return
        for at, link in enumerate(dearer):
            more = charged + link.amount if self.whole else link.amount
            if self._affordable(more):
                yield from self._from((*path, link), more, dearer[at + 1 :])

    def _affordable(self, amount: Amount) -> bool:
        return self.limit is None or amount.money <= self.limit


def _most(amounts: Sequence[Amount]) -> Amount:
    if len(amounts) == 1:
        return amounts[0]
    return Amount(
        tokens=max(amount.tokens for amount in amounts),
        input=max(amount.input for amount in amounts),
        output=max(amount.output for amount in amounts),
        money=max(amount.money for amount in amounts),
    )

"""What the attempts of one request may cost at worst, decided purely: `reach` and `worst`.

A tier whose answers are judged may hand a request on to the next dearer one; each attempt counts then, as far as the
rule of billing says. A chain is no longer than its tenant's attempts and the most that a request may cost allow.
"""

from collections.abc import Sequence

import msgspec

from gateway.limits import NOTHING, Amount


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A tier that a request may run on: what an attempt there takes at most, and whether its answer is judged."""

    tier: str
    amount: Amount
    judged: bool
    attempts: int  # of a request that begins here


def reach(links: Sequence[Link], limit: int | None, *, whole: bool) -> Sequence[Link]:
    """The part of `links`, from the first on, that one request may run through, at least the first one.

    `links`: a tier and the dearer ones, the cheapest first; `limit`: in billionths of money. `whole`: all attempts are
    charged, not the last one alone.
    """
    spent = 0
    for at, link in enumerate(links):
        handed_on = at == 0 or (links[at - 1].judged and at < links[0].attempts)
        spent = link.amount.money + (spent if whole else 0)
        if not handed_on or (at and limit is not None and spent > limit):
            return links[:at]
    return links


def worst(links: Sequence[Link], limit: int | None, *, whole: bool) -> Amount:
    """What a request takes at most that may begin on any of `links`, which are not empty."""
    chains = [reach(links[at:], limit, whole=whole) for at in range(len(links))]
    sums = [_sum(chain) if whole else _most([link.amount for link in chain]) for chain in chains]
    return _most(sums)


def _sum(chain: Sequence[Link]) -> Amount:
    return sum((link.amount for link in chain), NOTHING)


def _most(amounts: Sequence[Amount]) -> Amount:
    return Amount(
        tokens=max(amount.tokens for amount in amounts),
        input=max(amount.input for amount in amounts),
        output=max(amount.output for amount in amounts),
        money=max(amount.money for amount in amounts),
    )

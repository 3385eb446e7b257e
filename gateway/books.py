"""Who pays for what: each attempt is entered into the request's ledger, the metrics, and the tenant's charge.

What an attempt cost is told of every attempt. The tenant is charged as `billing` says: with the answer and the answers
judged before it ("attempts"), or with the answer alone ("answer"). An attempt that failed before the client saw any of
it is never charged, and neither is reading a prompt ahead. Who leaves, or sets a deadline that passes, pays for what
was made.
"""

from typing import Literal

from backends.backend import DeadlineExceeded, Delta, Usage
from gateway.ledger import ESCALATED, FAILED, RUNNING, Entry
from gateway.limits import NOTHING, Amount
from gateway.metering import Charge
from gateway.metrics import Metrics
from gateway.prices import billionths, cost
from gateway.request import Request
from gateway.tiers import Tier

Billing = Literal["attempts", "answer"]


class Books:
    def __init__(self, metrics: Metrics, largest: Tier, billing: Billing) -> None:
        """`largest`: the tier that is compared with."""
        self._metrics = metrics
        self._largest = largest
        self.billing: Billing = billing

    def answered(
        self, request: Request, tier: Tier, entry: Entry, last: Delta | None, usage: Usage
    ) -> Amount:
        """The attempt that answers has ended. What the tenant is to be charged with."""
        billed = request.streamed or not _failed(entry)
        amount = self._entered(request, tier, entry, last, usage, billed=billed)
        largest = cost(self._largest.price, usage)
        request.ledger.largest += largest  # several prompts of one call share it
        self._metrics.money_of_largest(request.tenant.name, tier.name, largest)
        return amount

    def set_aside(
        self, request: Request, charge: Charge, tier: Tier, entry: Entry, last: Delta | None, usage: Usage
    ) -> None:
        """Another attempt answers, or none: this one was found wanting, has failed, or was not waited for."""
        billed = not _failed(entry) and (self.billing == "attempts" or entry.outcome != ESCALATED)
        amount = self._entered(request, tier, entry, last, usage, billed=billed)
        charge.used += amount

    def _entered(
        self, request: Request, tier: Tier, entry: Entry, last: Delta | None, usage: Usage, *, billed: bool
    ) -> Amount:
        spent = cost(tier.price, usage)
        entry.settled(last, usage, spent, billed=billed)
        self._metrics.tokens(request.tenant.name, tier.name, usage)
        self._metrics.money(request.tenant.name, tier.name, spent)
        self._metrics.cascade.attempt(tier.name, entry.kind, usage)
        return _amount(usage, spent) if billed else NOTHING


def _failed(entry: Entry) -> bool:
    """By no doing of the client's, who may leave (it still runs then) or be out of time."""
    return entry.kind == FAILED and entry.outcome not in (RUNNING, DeadlineExceeded.code)


def _amount(usage: Usage, spent: float) -> Amount:
    return Amount(
        tokens=usage.prompt_tokens + usage.completion_tokens,
        input=usage.prompt_tokens,
        output=usage.completion_tokens,
        money=billionths(spent),
    )

"""What a call has to reserve, since nobody knows yet what it will use: the worst case of its chain of attempts."""

from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from gateway.books import Billing
from gateway.chain import Chain, Link
from gateway.errors import ApiError, too_expensive
from gateway.judges import Judges
from gateway.limits import NOTHING, Amount
from gateway.outlook import Outlook
from gateway.prices import NANO, billionths, most
from gateway.request import Request
from gateway.routing import TierSignals, fits

# Log-probabilities that one call may ask for. Until it is told each takes about 200 bytes here and 100 in the engine.
MAX_SCORES = 2**21


class Provision:
    def __init__(self, default_max_tokens: int, judges: Judges, billing: Billing) -> None:
        """`default_max_tokens`: of an answer, where a request names none."""
        self._default_max_tokens = default_max_tokens
        self._judges = judges
        self._whole = billing == "attempts"

    def check_scores(self, requests: Sequence[Request], outlooks: Sequence[Outlook]) -> None:
        """Raises ApiError 400 for a call whose answers could come with more log-probabilities than memory is for."""
        if all(request.logprobs is None for request in requests):
            return
        asked = sum(
            max(self._scores(request, tier) for tier in outlook.signals)
            for request, outlook in zip(requests, outlooks, strict=True)
        )
        if asked > MAX_SCORES:
            reason = (
                f"up to {asked} log-probabilities with alternatives in one call are more than {MAX_SCORES}"
            )
            raise ApiError(400, f"logprobs: {reason}", code="invalid_value", param="logprobs")

    def _scores(self, request: Request, tier: TierSignals) -> int:
        if request.logprobs is None or not fits(tier, request.max_tokens):
            return 0
        amount = self._amount(request, tier)
        told = amount.output + (amount.input if request.prompt_logprobs else 0)
        return told * (1 + request.logprobs)

    def affordable(self, requests: Sequence[Request], outlooks: Sequence[Outlook]) -> Sequence[Outlook]:
        """Without the tiers where the call could cost more than its tenant allows. Raises ApiError 400."""
        limit = _limit(requests[0])
        if limit is None:
            return outlooks
        dearest: Counter[str] = Counter()  # money by tier
        for request, outlook in zip(requests, outlooks, strict=True):
            for tier in outlook.signals:
                if fits(tier, request.max_tokens):
                    dearest[tier.name] += self._amount(request, tier).money
        dear = {tier for tier, money in dearest.items() if money > limit}
        for request, outlook in zip(requests, outlooks, strict=True):
            able = {tier.name for tier in outlook.signals if fits(tier, request.max_tokens)}
            if able <= dear:
                raise too_expensive(min(dearest[tier] for tier in able) / NANO, limit / NANO)
        return [
            structs.replace(outlook, signals=tuple(tier for tier in outlook.signals if tier.name not in dear))
            for outlook in outlooks
        ]

    def worst(self, requests: Sequence[Request], outlooks: Sequence[Outlook]) -> Amount:
        """What the call takes at most, wherever its requests begin."""
        alone = len(requests) == 1
        return sum(
            (
                self._chain(request, outlook, alone=alone).worst()
                for request, outlook in zip(requests, outlooks, strict=True)
            ),
            NOTHING,
        )

    def provides(self, request: Request, outlook: Outlook, wanting: Sequence[str], tier: str) -> bool:
        """Whether the tier may take over from those whose answers were found `wanting`, at least one."""
        return self._chain(request, outlook, alone=True).provides(wanting, tier)

    def _chain(self, request: Request, outlook: Outlook, *, alone: bool) -> Chain:
        """The tiers that the request fits. Prompts that share a call have one tier in common, so none is judged."""
        judged = alone and outlook.named is None
        tenant = request.tenant
        links = [
            Link(
                tier=tier.name,
                amount=self._amount(request, tier),
                judged=judged and self._judges.may(tenant, tier.name),
                attempts=self._judges.attempts(tenant, tier.name),
            )
            for tier in outlook.signals
            if fits(tier, request.max_tokens)
        ]
        return Chain(links=links, limit=_limit(request), whole=self._whole)

    def _amount(self, request: Request, tier: TierSignals) -> Amount:
        made = request.n * self._max_tokens(request, tier)
        return Amount(
            tokens=tier.prompt_tokens + made,
            input=tier.prompt_tokens,
            output=made,
            money=billionths(most(tier.price, tier.prompt_tokens, made)),
        )

    def _max_tokens(self, request: Request, tier: TierSignals) -> int:
        if request.max_tokens is not None:
            return request.max_tokens
        return min(self._default_max_tokens, tier.context_length - tier.prompt_tokens)


def _limit(request: Request) -> int | None:
    """The most that a request of its tenant may cost, in billionths."""
    price = request.tenant.max_request_price
    return None if price is None else billionths(price)

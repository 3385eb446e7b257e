"""The story of one request: recall → encode → reserve → assess → route → run → settle → remember.

Recalling comes before reserving, since the history counts towards the tokens that are reserved.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import replace

from backends.backend import Delta, Generation, Rejected, Sampling
from classifier import Assessment
from gateway import cascade
from gateway.answer import AnswerStream, Epilogue, in_the_clients_words
from gateway.cascade import Attempt
from gateway.config import Server
from gateway.desk import Desk
from gateway.errors import too_expensive
from gateway.limits import NOTHING, Amount
from gateway.metering import Charge, Meter
from gateway.metrics import Metrics
from gateway.outlook import Outlook, Scout
from gateway.prices import NANO, billionths, most
from gateway.prompts import Encoded
from gateway.recall import Memory, Recalled
from gateway.request import Answer, Card, Decision, Request, Route
from gateway.routing import Signals, TierSignals, fits
from gateway.several import on_one_tier, together
from gateway.telemetry import Traces
from gateway.tenants import engine_tag
from gateway.tiers import Replica, Tier
from prefixcache.affinity import Affinity

logger = logging.getLogger(__name__)


class Dispatcher:
    """Runs requests. Knows no HTTP: dialects map to `Request` and from `Answer`."""

    def __init__(
        self,
        *,
        tiers: Sequence[Tier],
        aliases: Mapping[str, str],
        server: Server,
        meter: Meter,
        memory: Memory,
        assess: Callable[[str], Assessment],
        desk: Desk,
        affinity: Affinity,
        salts: Mapping[str, bytes],  # by tenant
        metrics: Metrics,
        traces: Traces,
    ) -> None:
        self._tiers = {tier.name: tier for tier in tiers}
        self._largest = tiers[-1]
        self._scout = Scout(
            tiers=tiers,
            aliases=aliases,
            memory=memory,
            assess=assess,
            desk=desk,
            affinity=affinity,
            salts=salts,
            metrics=metrics,
            traces=traces,
        )
        self._server = server
        self._meter = meter
        self._memory = memory
        self._salts = salts
        self._metrics = metrics
        self._traces = traces

    def cards(self) -> tuple[Card, ...]:
        return tuple(
            Card(
                name=tier.name,
                models=tuple(sorted({replica.model for replica in tier.replicas})),
                context_length=tier.context_length,
                price=tier.price,
                ready=tier.available,
            )
            for tier in self._tiers.values()
        )

    async def run(self, request: Request) -> Answer:
        """Returns once the answer has begun. Raises ApiError, and BackendError when every attempt failed."""
        [answer] = await self.run_all((request,))
        return answer

    async def run_all(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """One call's requests, on one tier and under one reservation. As `run`; where one fails, all of them end."""
        started = time.monotonic()
        first = requests[0]
        deadline = asyncio.get_running_loop().time() + first.timeout
        outlooks = self._affordable(requests, [await self._scout.look(request) for request in requests])
        reserved = sum(map(self._worst, requests, outlooks), NOTHING)
        with self._traces.span("headrace.reserve", tokens=reserved.tokens):
            charge = await self._meter.reserve(first.tenant, first.id, reserved, parts=len(requests))
        answers: dict[str, Answer] = {}  # those that have begun

        async def begin(request: Request, outlook: Outlook, route: Route) -> None:
            recalled = await self._memory.open(request, outlook.recalled)
            encoded = outlook.encoded
            try:
                attempt = await cascade.run(
                    route,
                    self._tiers,
                    encoded.cached,
                    lambda tier, replica: self._start(request, recalled, encoded, tier, replica, deadline),
                    request.ledger,
                )
            except Rejected as error:
                raise in_the_clients_words(error, request) from error
            self._scout.answers(request, outlook, attempt.tier.name)
            answers[request.id] = self._answer(request, recalled, charge, route, attempt, encoded, started)

        try:
            patience = min(self._server.restart_patience, first.timeout)
            outlooks = [await self._scout.settled(outlook, patience) for outlook in outlooks]
            routes = [await self._route(*asked) for asked in zip(requests, outlooks, strict=True)]
            await together(list(map(begin, requests, outlooks, on_one_tier(routes, [*self._tiers]))))
        except BaseException:
            await self._give_up(charge, answers.values(), len(requests))
            raise
        return [answers[request.id] for request in requests]

    async def _give_up(self, charge: Charge, begun: Collection[Answer], parts: int) -> None:
        """What has begun settles its own part when it is closed."""
        await self._meter.settle(charge, NOTHING, parts=parts - len(begun))
        for answer in begun:
            await answer.deltas.aclose()

    async def decide(self, request: Request) -> Decision:
        """Where `run` would send it now, and why. Nothing is reserved, run or stored. Raises ApiError as `run`."""
        [outlook] = self._affordable((request,), [await self._scout.look(request)])
        route = self._scout.route(request, outlook, await self._scout.assessed(request, outlook))
        return Decision(
            route=route,
            prompt_tokens={tier.name: tier.prompt_tokens for tier in outlook.signals},
            cached_tokens={tier.name: tier.cached_tokens for tier in outlook.signals},
        )

    async def count(self, request: Request) -> int:
        """Tokens of the prompt on the tier that the model means, for auto on the cheapest allowed. Raises ApiError."""
        return await self._scout.count(request)

    def _affordable(self, requests: Sequence[Request], outlooks: Sequence[Outlook]) -> Sequence[Outlook]:
        """Without the tiers where the call could cost more than its tenant allows. Raises ApiError 400."""
        limit = requests[0].tenant.max_request_price
        if limit is None:
            return outlooks
        worst: Counter[str] = Counter()  # money by tier
        for request, outlook in zip(requests, outlooks, strict=True):
            for tier in outlook.signals:
                if fits(tier, request.max_tokens):
                    worst[tier.name] += self._worst(request, replace(outlook, signals=(tier,))).money
        if min(worst.values()) > billionths(limit):
            raise too_expensive(min(worst.values()) / NANO, limit)
        dear = {tier for tier, money in worst.items() if money > billionths(limit)}
        return [
            replace(outlook, signals=tuple(tier for tier in outlook.signals if tier.name not in dear))
            for outlook in outlooks
        ]

    def _worst(self, request: Request, outlook: Outlook) -> Amount:
        """What the request takes at most, on any tier that it fits, however many attempts its chain has."""
        worst = [
            (tier.prompt_tokens, request.n * self._max_tokens(request, tier), tier.price)
            for tier in outlook.signals
            if fits(tier, request.max_tokens)
        ]
        return Amount(
            tokens=max(prompt + made for prompt, made, _ in worst),
            input=max(prompt for prompt, _, _ in worst),
            output=max(made for _, made, _ in worst),
            money=billionths(max(most(price, prompt, made) for prompt, made, price in worst)),
        )

    def _max_tokens(self, request: Request, tier: TierSignals) -> int:
        if request.max_tokens is not None:
            return request.max_tokens
        return min(self._server.default_max_tokens, tier.context_length - tier.prompt_tokens)

    async def _route(self, request: Request, outlook: Outlook) -> Route:
        signals = await self._scout.assessed(request, outlook)
        route = self._scout.route(request, outlook, signals)
        self._scout.decided(request, signals)
        tier = route.order[0]
        self._metrics.route(tier, _decided_by(outlook, signals, tier))
        for name, other in route.shadows.items():
            self._metrics.shadow(name, agrees=other == tier)
            if other != tier:
                logger.info("shadow policy %s: request %s to %s, not to %s", name, request.id, other, tier)
        return route

    def _start(
        self,
        request: Request,
        recalled: Recalled,
        encoded: Encoded,
        tier: Tier,
        replica: Replica,
        deadline: float,
    ) -> AsyncGenerator[Delta, None]:
        salt = self._salts[request.tenant.name]
        session = recalled.session
        room = tier.context_length - encoded.length(replica)
        generation = Generation(
            id=request.id,
            prompt=encoded.prompt,
            ids=encoded.of(replica),
            sampling=_sampling(request, min(self._server.default_max_tokens, room), encoded.ends(replica)),
            salt=salt,
            tenant=engine_tag(salt),
            session="" if session is None else engine_tag(salt, session.id),
            weight=request.tenant.weight,
            traffic=request.traffic,
            priority=request.priority,
            timeout=max(0.0, deadline - asyncio.get_running_loop().time()),
        )
        return cascade.within(self._traces.attempt(tier.name, replica, generation), deadline)

    def _answer(
        self,
        request: Request,
        recalled: Recalled,
        charge: Charge,
        route: Route,
        attempt: Attempt,
        encoded: Encoded,
        started: float,
    ) -> Answer:
        if attempt.tier.name != route.order[0]:
            self._metrics.route(attempt.tier.name, "failover")
        epilogue = Epilogue(
            request=request,
            recalled=recalled,
            charge=charge,
            attempt=attempt,
            largest=self._largest.price,
            prompt_tokens=encoded.length(attempt.replica),
            started=started,
            first_text=time.monotonic() - started,
            meter=self._meter,
            memory=self._memory,
            metrics=self._metrics,
        )
        session = recalled.session.id if recalled.session is not None else None
        headers = {
            "x-headrace-tier": attempt.tier.name,
            "x-headrace-reason": _reason(route, attempt),
            **charge.headers,
        }
        if route.assessment is not None:
            headers["x-headrace-task"] = route.assessment.task
        if session is not None:
            headers["x-session-id"] = session
        return Answer(
            id=request.id,
            created=int(time.time()),
            tier=attempt.tier.name,
            route=route,
            session=session,
            spelled=(encoded.spelled(attempt.replica),),
            headers=headers,
            deltas=AnswerStream(attempt, epilogue),
        )


def _sampling(request: Request, default_max_tokens: int, ends: tuple[int, ...]) -> Sampling:
    """`ends`: end tokens besides the model's own."""
    return Sampling(
        max_tokens=default_max_tokens if request.max_tokens is None else request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed if request.seed is not None else secrets.randbits(63),
        stop=request.stop,
        stop_token_ids=request.stop_token_ids + (() if request.ignore_eos else ends),
        ignore_eos=request.ignore_eos,
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=dict(request.logit_bias),
        min_tokens=request.min_tokens,
        n=request.n,
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        grammar=request.grammar,
    )


def _decided_by(outlook: Outlook, signals: Signals, tier: str) -> str:
    if outlook.named is not None:
        return "requested"
    return "pinned" if tier == signals.pinned else "classifier"


def _reason(route: Route, attempt: Attempt) -> str:
    first = route.order[0]
    if attempt.tier.name == first:
        return route.reason
    return f"{attempt.tier.name}: failover from {first} ({route.reason})"

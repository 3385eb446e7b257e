"""The story of one request: recall → encode → reserve → assess → route → run → settle → remember.

Recalling comes before reserving, since the history counts towards the tokens that are reserved. A prompt is assessed
while the store of the limits thinks.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec

from backends.backend import Delta, Generation, Rejected
from classifier import Assessment
from gateway import cascade
from gateway.answer import AnswerStream, Epilogue, in_the_clients_words
from gateway.books import Billing, Books
from gateway.cascade import Attempt, Plan
from gateway.config import Server
from gateway.desk import Desk
from gateway.errors import ApiError
from gateway.holding import Held
from gateway.judges import Brief, Judges
from gateway.ledger import Entry
from gateway.limits import NOTHING
from gateway.metering import Charge, Meter
from gateway.metrics import Metrics
from gateway.opening import Opening
from gateway.outlook import Outlook, Scout
from gateway.provision import Provision
from gateway.reasons import reason
from gateway.recall import Memory
from gateway.request import Answer, Card, Decision, Judged, Request, Route
from gateway.routing import Signals, expected_answer
from gateway.sampling import sampling_of
from gateway.several import on_one_tier, together
from gateway.shadow import ShadowSampler
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
        judges: Judges,
        billing: Billing = "attempts",
        shadow: ShadowSampler | None = None,
        metrics: Metrics,
        traces: Traces,
    ) -> None:
        self._tiers = {tier.name: tier for tier in tiers}
        self._shadow = shadow
        self._judges = judges
        self._provision = Provision(server.default_max_tokens, judges, billing)
        self._books = Books(metrics, tiers[-1], billing)
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
        if first.steps and not self._traces.exported:
            raise _no_traces()
        deadline = asyncio.get_running_loop().time() + first.timeout
        outlooks = [await self._scout.look(request) for request in requests]
        self._provision.check_scores(requests, outlooks)
        outlooks = list(self._provision.affordable(requests, outlooks))
        reserved = self._provision.worst(requests, outlooks)
        with (
            self._scout.assessing(requests, outlooks),
            self._traces.span("headrace.reserve", tokens=reserved.tokens),
        ):
            charge = await self._meter.reserve(first.tenant, first.id, reserved, parts=len(requests))
        answers: dict[str, Answer] = {}  # those that have begun

        async def begin(request: Request, outlook: Outlook, route: Route) -> None:
            opening = Opening(self._memory, request.tenant.name, outlook.recalled)
            errand = _Errand(request, outlook, route, charge, deadline, opening)
            plan = self._plan(errand, judged=len(requests) == 1)
            climb = cascade.run(plan, self._tiers, request.ledger, self._metrics.cascade, self._traces)
            try:
                attempt = await opening.beside(climb)
            except Rejected as error:
                raise in_the_clients_words(error, request) from error
            self._scout.answers(request, outlook, attempt.tier.name)
            answers[request.id] = self._answer(errand, attempt, started)
            if self._shadow is not None and len(requests) == 1:
                self._shadow.offer(request, outlook.encoded.prompt, route)

        try:
            patience = min(self._server.restart_patience, first.timeout)
            outlooks = [await self._scout.settled(outlook, patience) for outlook in outlooks]
            routes = [await self._route(*asked) for asked in zip(requests, outlooks, strict=True)]
            await together(list(map(begin, requests, outlooks, on_one_tier(routes, [*self._tiers]))))
        except BaseException:
            await self._give_up(charge, answers.values(), requests)
            raise
        return [answers[request.id] for request in requests]

    async def _give_up(self, charge: Charge, begun: Collection[Answer], requests: Sequence[Request]) -> None:
        """What has begun settles its own part when it is closed."""
        tried = any(request.ledger.entries for request in requests)
        with self._traces.span("headrace.settle"):
            await self._meter.settle(charge, NOTHING if tried else None, parts=len(requests) - len(begun))
        for answer in begun:
            await answer.deltas.aclose()

    async def decide(self, request: Request) -> Decision:
        """Where `run` would send it now, and why. Nothing is reserved, run or stored. Raises ApiError as `run`."""
        [outlook] = self._provision.affordable((request,), [await self._scout.look(request)])
        route = self._scout.route(request, outlook, await self._scout.assessed(request, outlook))
        return Decision(
            route=route,
            judged=self._foreseen(request, outlook, route),
            prompt_tokens={tier.name: tier.prompt_tokens for tier in outlook.signals},
            cached_tokens={tier.name: tier.cached_tokens for tier in outlook.signals},
        )

    async def count(self, request: Request) -> int:
        """Tokens of the prompt on the tier that the model means, for auto on the cheapest allowed. Raises ApiError."""
        return await self._scout.count(request)

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

    def _foreseen(self, request: Request, outlook: Outlook, route: Route) -> Judged:
        """What would be judged of the answer of the route's first tier."""
        tier = route.order[0]
        names = list(self._tiers)
        above = [name for name in route.order if names.index(name) > names.index(tier)]
        brief = self._brief(request, outlook, route, tier)
        if isinstance(brief, str):
            return Judged(why_not=brief)
        if not above:
            return Judged(why_not="no dearer tier could answer instead")
        able = [name for name in above if self._provision.provides(request, outlook, (tier,), name)]
        if not able:
            return Judged(why_not="more attempts would exceed max_request_price or max_attempts")
        return Judged(
            when=brief.terms.when,
            after=brief.after,
            at_end=brief.confidence.at_end(brief.task),
            threshold=None if brief.stakes.by_worth else brief.stakes.threshold,
            next=able[0],
        )

    def _brief(self, request: Request, outlook: Outlook, route: Route, tier: str) -> Brief | str:
        return self._judges.brief(
            request.tenant,
            tier,
            route.assessment,
            request.n,
            outlook.signals,
            route.weight,
            expected_answer(request.max_tokens),
        )

    def _plan(self, errand: "_Errand", *, judged: bool) -> Plan:
        request, route = errand.request, errand.route

        def brief(tier: Tier, replica: Replica) -> Brief | None:
            found = self._brief(request, errand.outlook, route, tier.name)
            return None if isinstance(found, str) else found

        def set_aside(tier: Tier, replica: Replica, entry: Entry, held: Held) -> None:
            if held.deltas:
                usage = held.used(errand.outlook.encoded.length(replica))
                self._books.set_aside(request, errand.charge, tier, entry, held.last, usage)
            if held.last is not None:  # nobody gets it, but its engine has made all of it
                self._metrics.generation(
                    replica.name, usage, held.last.timings, request.n, request.max_tokens
                )

        first = route.order[0]
        return Plan(
            route=route,
            cached=errand.outlook.encoded.cached,
            start=lambda tier, replica, entry, watched: self._start(errand, tier, replica, entry, watched),
            warm=lambda tier, replica: replica.backend.warm(self._generation(errand, tier, replica, False)),
            brief=brief,
            set_aside=set_aside,
            attempts=self._judges.attempts(request.tenant, first),
            follows=partial(self._provision.provides, request, errand.outlook) if judged else cascade.nobody,
        )

    def _start(
        self, errand: "_Errand", tier: Tier, replica: Replica, entry: Entry, watched: bool
    ) -> AsyncGenerator[Delta, None]:
        generation = self._generation(errand, tier, replica, watched)
        followed = self._traces.attempt(entry, replica, generation)
        return cascade.within(followed, errand.deadline, errand.opening.done)

    def _generation(self, errand: "_Errand", tier: Tier, replica: Replica, watched: bool) -> Generation:
        """`watched`: with signals of how sure the model is."""
        request, encoded, session = errand.request, errand.outlook.encoded, errand.outlook.recalled.session
        salt = self._salts[request.tenant.name]
        room = tier.context_length - encoded.length(replica)
        most = min(self._server.default_max_tokens, room)
        return Generation(
            id=request.id,
            prompt=encoded.prompt,
            ids=encoded.of(replica),
            sampling=sampling_of(request, most, encoded.ends(replica), watched),
            salt=salt,
            tenant=engine_tag(salt),
            session="" if session is None else engine_tag(salt, session.id),
            task=request.task or ("" if errand.route.assessment is None else errand.route.assessment.task),
            weight=request.tenant.weight,
            traffic=request.traffic,
            priority=request.priority,
            timeout=max(0.0, errand.deadline - asyncio.get_running_loop().time()),
            steps=request.steps,
        )

    def _answer(self, errand: "_Errand", attempt: Attempt, started: float) -> Answer:
        request, route, outlook = errand.request, errand.route, errand.outlook
        encoded, session, tier = outlook.encoded, outlook.recalled.session, attempt.tier.name
        if tier != route.order[0]:
            escalated = any(not verdict.kept for verdict in attempt.verdicts)
            self._metrics.route(tier, "escalation" if escalated else "failover")
        epilogue = Epilogue(
            request=request,
            recalled=outlook.recalled,
            charge=errand.charge,
            attempt=attempt,
            prompt_tokens=encoded.length(attempt.replica),
            started=started,
            first_text=time.monotonic() - started,
            books=self._books,
            meter=self._meter,
            memory=self._memory,
            metrics=self._metrics,
            traces=self._traces,
        )
        headers = {
            "x-headrace-tier": tier,
            "x-headrace-reason": reason(route, attempt),
            **errand.charge.headers,
        }
        if route.assessment is not None:
            headers["x-headrace-task"] = route.assessment.task
        if session is not None:
            headers["x-session-id"] = session.id
        return Answer(
            id=request.id,
            created=int(time.time()),
            tier=tier,
            route=route,
            session=None if session is None else session.id,
            spelled=(encoded.spelled(attempt.replica),),
            headers=headers,
            deltas=AnswerStream(attempt, epilogue),
        )


class _Errand(msgspec.Struct, frozen=True):
    """A request that is to be run, and all that is known of it. `deadline`: on the event loop's clock."""

    request: Request
    outlook: Outlook
    route: Route
    charge: Charge
    deadline: float
    opening: Opening


def _no_traces() -> ApiError:
    return ApiError(
        400,
        "x-headrace-trace: this gateway exports no traces (telemetry.otlp_endpoint)",
        code="unsupported_parameter",
        param="x-headrace-trace",
    )


def _decided_by(outlook: Outlook, signals: Signals, tier: str) -> str:
    if outlook.named is not None:
        return "requested"
    return "pinned" if tier == signals.pinned else "classifier"

"""What is known before anything runs: who may answer, the prompt in their tokens, and where it would go."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial

import msgspec
from msgspec import structs

from backends.backend import Rejected
from classifier import Assessment
from gateway.answer import in_the_clients_words
from gateway.capability import able, that_honour, that_take_tools
from gateway.desk import Desk
from gateway.errors import ApiError
from gateway.loops import Loops
from gateway.metrics import Metrics
from gateway.prompts import Encoded, encode
from gateway.recall import Memory, Recalled
from gateway.request import Request, Route
from gateway.routing import NoRoute, Signals, TierSignals, fits
from gateway.sampling import sampling_of
from gateway.span_encoding import Attributes
from gateway.telemetry import Traces
from gateway.tiers import Tier
from gateway.window import within_context
from prefixcache.affinity import Affinity

AUTO = "auto"
LOOK_AGAIN = 0.05  # seconds
SOON = 4000  # characters whose assessment is over before a thread would have started


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """One request's. `named`: the tier that the client named, None for auto; `signals`: of the tiers that may run.

    `words`: what the person asks, and `assess` tells what the classifier thinks of it, which is found out once.
    """

    named: str | None
    recalled: Recalled
    encoded: Encoded
    signals: tuple[TierSignals, ...]
    words: Callable[[], str]
    assess: Callable[[], Assessment]


class Scout:
    """Looks ahead; reserves nothing, and stores nothing."""

    def __init__(
        self,
        *,
        tiers: Sequence[Tier],
        aliases: Mapping[str, str],
        memory: Memory,
        assess: Callable[[str], Assessment],
        desk: Desk,
        affinity: Affinity,
        salts: Mapping[str, bytes],  # by tenant
        metrics: Metrics,
        traces: Traces,
    ) -> None:
        self._tiers = {tier.name: tier for tier in tiers}
        self._aliases = aliases
        self._memory = memory
        self._assess_text = assess
        self._desk = desk
        self._loops = Loops()
        self._affinity = affinity
        self._salts = salts
        self._metrics = metrics
        self._traces = traces

    async def look(self, request: Request) -> Outlook:
        """Raises ApiError for a model that is not there or not allowed, a session likewise, a prompt too long."""
        named, tiers = self._resolve(request)
        with self._traces.span("headrace.recall"):
            recalled = await self._memory.recall(request)
        prompt = recalled.prompt(request.prompt)
        if prompt.speaks_of_tools:
            tiers = that_take_tools(tiers)
        try:
            tiers = that_honour(prompt, sampling_of(request, 1, (), watched=False), tiers)
        except Rejected as error:
            raise in_the_clients_words(error, request) from error
        encoded, recalled = await self._encode(request, recalled, tiers)
        signals = tuple([_tier_signals(encoded, tier) for tier in tiers])
        if not any(fits(tier, request.max_tokens) for tier in signals):
            raise _too_long(request, max(signals, key=lambda tier: tier.context_length))
        words = cache(partial(encoded.words, tiers[0].replicas[0]))
        return Outlook(
            named=named, recalled=recalled, encoded=encoded, signals=signals, words=words,
            assess=cache(lambda: self._assess(words())),
        )  # fmt: skip

    @contextmanager
    def assessing(self, requests: Sequence[Request], outlooks: Sequence[Outlook]) -> Iterator[None]:
        """Whatever is waited for meanwhile, what is short enough to be assessed on the event loop then is."""
        loop = asyncio.get_running_loop()
        early = [
            loop.call_soon(outlook.assess)
            for request, outlook in zip(requests, outlooks, strict=True)
            if self._to_judge(request, outlook, self._pinned(request, outlook))
            and len(outlook.words()) <= SOON
        ]
        try:
            yield
        finally:
            for handle in early:
                handle.cancel()

    async def settled(self, outlook: Outlook, patience: float) -> Outlook:
        """The outlook as it is when some tier answers, waiting up to `patience` seconds while one is coming back."""
        tiers = [self._tiers[tier.name] for tier in outlook.signals]
        if _returning(tiers):
            with self._traces.span("headrace.wait"):
                await _return_of(tiers, patience)
        if all(s.available == tier.available for s, tier in zip(outlook.signals, tiers, strict=True)):
            return outlook
        signals = tuple(structs.replace(s, available=self._tiers[s.name].available) for s in outlook.signals)
        return structs.replace(outlook, signals=signals)

    async def assessed(self, request: Request, outlook: Outlook) -> Signals:
        """What a route is decided by. A named tier needs no assessment, and no person spoke in a tool loop."""
        pinned = self._pinned(request, outlook)
        assessment = None
        if self._to_judge(request, outlook, pinned):
            soon = len(outlook.words()) <= SOON
            assessment = outlook.assess() if soon else await asyncio.to_thread(outlook.assess)
        return Signals(tiers=outlook.signals, assessment=assessment, pinned=pinned)

    def _pinned(self, request: Request, outlook: Outlook) -> str | None:
        return None if outlook.named is not None else self._loops.tier(request, outlook.recalled.turns)

    @staticmethod
    def _to_judge(request: Request, outlook: Outlook, pinned: str | None) -> bool:
        goes_on = any(
            tier.name == pinned and tier.available and fits(tier, request.max_tokens)
            for tier in outlook.signals
        )
        return outlook.named is None and not goes_on

    def route(self, request: Request, outlook: Outlook, signals: Signals) -> Route:
        """Raises ApiError 503 when no tier that the prompt fits answers."""
        with self._traces.span("headrace.route") as span:
            try:
                route = self._desk.decide(request, signals, outlook.named)
            except NoRoute as error:
                raise _no_tier(error) from error
            if span.is_recording():
                span.set_attributes(_told(route, signals))
        return route

    def decided(self, request: Request, signals: Signals) -> None:
        """A route that will be run: goals are kept over such requests."""
        self._desk.saw(request, signals)

    def answers(self, request: Request, outlook: Outlook, tier: str) -> None:
        """The tier that does answer keeps the conversation until a person speaks again."""
        if outlook.named is None:
            self._loops.answered(request, outlook.recalled.turns, tier)

    async def count(self, request: Request) -> int:
        """Tokens of the prompt on the tier that is named, for auto on the cheapest allowed. Raises as `look`."""
        _, tiers = self._resolve(request)
        if request.prompt.speaks_of_tools:
            tiers = that_take_tools(tiers)
        return (await encode(request.prompt, tiers[:1])).tokens(tiers[0])

    def _resolve(self, request: Request) -> tuple[str | None, Sequence[Tier]]:
        """The tier that the client named (None for auto) and the tiers that may run, the cheapest first."""
        name = self._aliases.get(request.model, request.model)
        allowed = request.tenant.tiers
        tiers = [t for t in self._tiers.values() if allowed is None or t.name in allowed]
        if name == AUTO:
            return None, able(request.prompt, request.prompt_field, tiers)
        if name not in self._tiers:
            known = ", ".join((AUTO, *self._tiers, *self._aliases))
            raise ApiError(
                404,
                f"model: {request.model[:64]!r} does not exist; known are {known}",
                code="model_not_found",
                param="model",
            )
        if allowed is not None and name not in allowed:
            raise ApiError(
                403, f"model: tier {name} is not open to this tenant", code="model_not_allowed", param="model"
            )
        return name, able(request.prompt, request.prompt_field, [self._tiers[name]])

    async def _encode(
        self, request: Request, recalled: Recalled, tiers: Sequence[Tier]
    ) -> tuple[Encoded, Recalled]:
        """The prompt in each tier's tokens; a recalled history too long for all of them loses its oldest turns."""
        with self._traces.span("headrace.encode"):
            encoded = await encode(recalled.prompt(request.prompt), tiers)
            if recalled.turns != recalled.new and not any(
                fits(_tier_signals(encoded, tier), request.max_tokens) for tier in tiers
            ):
                recalled = await within_context(recalled, request.prompt, tiers, request.max_tokens)
                encoded = await encode(recalled.prompt(request.prompt), tiers)
        with self._traces.span("headrace.prefix") as span:
            encoded.look_up(tiers, self._affinity, self._salts[request.tenant.name])
            if span.is_recording():
                span.set_attributes({f"headrace.cached.{name}": n for name, n in encoded.cached.items()})
        return encoded, recalled

    def _assess(self, text: str) -> Assessment:
        with self._traces.span("headrace.classify") as span:
            assessment = self._assess_text(text)
            span.set_attribute("headrace.task", assessment.task)
            for tier, good in assessment.good.items():
                span.set_attribute(f"headrace.good.{tier}", good)
        self._metrics.classified(assessment.seconds)
        return assessment


def _returning(tiers: Sequence[Tier]) -> bool:
    """None of them answers now, and one is about to."""
    return not any(tier.available for tier in tiers) and any(tier.recovering for tier in tiers)


async def _return_of(tiers: Sequence[Tier], patience: float) -> None:
    """Until one of them answers, for `patience` seconds at most."""
    end = time.monotonic() + patience
    while _returning(tiers) and time.monotonic() < end:
        await asyncio.sleep(LOOK_AGAIN)


def _told(route: Route, signals: Signals) -> Attributes:
    """Of a span: what was decided, and by what."""
    scores = {} if route.assessment is None else route.assessment.good
    return {
        "headrace.route.tier": route.order[0],
        "headrace.route.order": list(route.order),
        "headrace.route.reason": route.reason,
        **{f"headrace.route.good.{tier}": good for tier, good in scores.items()},
        **{f"headrace.route.load.{tier.name}": tier.load for tier in signals.tiers},
        **{f"headrace.route.shadow.{name}": tier for name, tier in route.shadows.items()},
    }


def _tier_signals(encoded: Encoded, tier: Tier) -> TierSignals:
    """Of the replica that would take the request now; of none that answers, nothing is cached."""
    replica = tier.pick(encoded.cached)
    return TierSignals(
        name=tier.name,
        available=replica is not None,
        context_length=tier.context_length,
        prompt_tokens=encoded.tokens(tier),
        cached_tokens=0 if replica is None else encoded.cached.get(replica.name, 0),
        price=tier.price,
        load=0.0 if replica is None else replica.load,
    )


def _no_tier(error: NoRoute) -> ApiError:
    return ApiError(
        503, f"No tier can answer now: {error}.", type="server_error", code="no_tier_available",
        headers={"retry-after": "1"},
    )  # fmt: skip


def _too_long(request: Request, longest: TierSignals) -> ApiError:
    asked = f" and {request.max_tokens} for the answer" if request.max_tokens is not None else ""
    return ApiError(
        400,
        f"This model's maximum context length is {longest.context_length} tokens. "
        f"Your request needs {longest.prompt_tokens} tokens for the prompt{asked}. Please shorten it.",
        code="context_length_exceeded",
        param=request.prompt_field,
    )

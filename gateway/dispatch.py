"""The story of one request: recall → encode → reserve → assess → route → run → settle → remember.

Recalling comes before reserving, since the history counts towards the tokens that are reserved.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from backends.backend import Delta, Generation, Sampling
from backends.prompt import Prompt
from classifier import Assessment
from gateway import cascade
from gateway.answer import AnswerStream, Epilogue
from gateway.cascade import Attempt
from gateway.config import Server
from gateway.errors import ApiError
from gateway.metering import Charge, Meter
from gateway.metrics import Metrics
from gateway.prompts import Encoded, encode
from gateway.recall import Memory, Recalled
from gateway.request import Answer, Card, Request, Route
from gateway.routing import NoRoute, Policy, Signals, TierSignals, choose, fits
from gateway.telemetry import Traces
from gateway.tiers import Replica, Tier
from gateway.window import within_context
from prefixcache.affinity import Affinity

AUTO = "auto"


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
        affinity: Affinity,
        salts: Mapping[str, bytes],  # by tenant
        metrics: Metrics,
        traces: Traces,
    ) -> None:
        self._tiers = {tier.name: tier for tier in tiers}
        self._aliases = aliases
        self._server = server
        self._meter = meter
        self._memory = memory
        self._assess_text = assess
        self._affinity = affinity
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
        started = time.monotonic()
        deadline = asyncio.get_running_loop().time() + request.timeout
        named, tiers = self._resolve(request)
        with self._traces.span("headrace.recall"):
            recalled = await self._memory.recall(request)
        encoded, recalled = await self._encode(request, recalled, tiers)
        signals = self._signals(encoded, tiers)
        reserved = self._most_tokens(request, signals)
        with self._traces.span("headrace.reserve", tokens=reserved):
            charge = await self._meter.reserve(request.tenant, request.id, reserved)
        try:
            route = self._route(request, named, signals, encoded.prompt)
            recalled = await self._memory.open(request, recalled)
            attempt = await cascade.run(
                route,
                self._tiers,
                encoded.cached,
                lambda tier, replica: self._start(request, encoded, tier, replica, deadline),
            )
        except BaseException:
            await self._meter.settle(charge, 0)
            raise
        return self._answer(request, recalled, charge, route, attempt, encoded, started)

    def _resolve(self, request: Request) -> tuple[str | None, list[Tier]]:
        """The tier that the client named (None for auto) and the tiers that may run, the cheapest first."""
        name = self._aliases.get(request.model, request.model)
        allowed = request.tenant.tiers
        tiers = [t for t in self._tiers.values() if allowed is None or t.name in allowed]
        if name == AUTO:
            return None, tiers
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
        return name, [self._tiers[name]]

    async def _encode(
        self, request: Request, recalled: Recalled, tiers: Sequence[Tier]
    ) -> tuple[Encoded, Recalled]:
        """The prompt in each tier's tokens; a recalled history too long for all of them loses its oldest turns."""
        salt = self._salts[request.tenant.name]
        prompt = request.prompt if request.prompt.text is not None else Prompt(messages=recalled.messages)
        encoded = await encode(prompt, tiers)
        if recalled.session is not None and not any(
            fits(signals, request.max_tokens) for signals in self._signals(encoded, tiers)
        ):
            recalled = await within_context(recalled, tiers, request.max_tokens)
            encoded = await encode(Prompt(messages=recalled.messages), tiers)
        with self._traces.span("headrace.prefix"):
            encoded.look_up(tiers, self._affinity, salt)
        return encoded, recalled

    def _signals(self, encoded: Encoded, tiers: Sequence[Tier]) -> tuple[TierSignals, ...]:
        return tuple(
            TierSignals(
                name=tier.name,
                available=tier.available,
                context_length=tier.context_length,
                prompt_tokens=encoded.tokens(tier),
                cached_tokens=max(encoded.cached.get(replica.name, 0) for replica in tier.replicas),
            )
            for tier in tiers
        )

    def _most_tokens(self, request: Request, signals: Sequence[TierSignals]) -> int:
        """What the request uses at most, on any tier that it fits. Raises ApiError 400 when it fits none."""
        fitting = [tier for tier in signals if fits(tier, request.max_tokens)]
        if not fitting:
            longest = max(signals, key=lambda tier: tier.context_length)
            raise _too_long(request, longest)
        return max(tier.prompt_tokens + self._max_tokens(request, tier) for tier in fitting)

    def _max_tokens(self, request: Request, tier: TierSignals) -> int:
        if request.max_tokens is not None:
            return request.max_tokens
        return min(self._server.default_max_tokens, tier.context_length - tier.prompt_tokens)

    def _route(
        self, request: Request, named: str | None, signals: Sequence[TierSignals], prompt: Prompt
    ) -> Route:
        assessment = self._assess(prompt) if named is None else None
        policy = Policy(tier=named, quality_floor=request.tenant.quality_floor, max_tokens=request.max_tokens)
        with self._traces.span("headrace.route") as span:
            try:
                route = choose(Signals(tiers=tuple(signals), assessment=assessment), policy)
            except NoRoute as error:
                raise _no_tier(error) from error
            span.set_attribute("headrace.route.tier", route.order[0])
            span.set_attribute("headrace.route.reason", route.reason)
        self._metrics.route(route.order[0], "classifier" if named is None else "requested")
        return route

    def _assess(self, prompt: Prompt) -> Assessment:
        with self._traces.span("headrace.classify") as span:
            assessment = self._assess_text(_last_words(prompt))
            span.set_attribute("headrace.task", assessment.task)
            for tier, good in assessment.good.items():
                span.set_attribute(f"headrace.good.{tier}", good)
        self._metrics.classified(assessment.seconds)
        return assessment

    def _start(
        self, request: Request, encoded: Encoded, tier: Tier, replica: Replica, deadline: float
    ) -> AsyncGenerator[Delta, None]:
        length = encoded.length(replica)
        room = tier.context_length - length
        generation = Generation(
            id=request.id,
            prompt=encoded.prompt,
            ids=encoded.of(replica),
            sampling=Sampling(
                max_tokens=request.max_tokens or min(self._server.default_max_tokens, room),
                temperature=request.temperature,
                top_p=request.top_p,
                top_k=request.top_k,
                seed=request.seed if request.seed is not None else secrets.randbits(63),
                stop=request.stop,
                stop_token_ids=request.stop_token_ids,
                ignore_eos=request.ignore_eos,
            ),
            salt=self._salts[request.tenant.name],
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
            headers=headers,
            deltas=AnswerStream(attempt, epilogue),
        )


def _last_words(prompt: Prompt) -> str:
    """What the person asks now: the last user message, or the text to continue."""
    if prompt.text is not None:
        return prompt.text
    users = [message.content for message in prompt.messages if message.role == "user"]
    return users[-1] if users else prompt.messages[-1].content


def _reason(route: Route, attempt: Attempt) -> str:
    first = route.order[0]
    if attempt.tier.name == first:
        return route.reason
    return f"{attempt.tier.name}: failover from {first} ({route.reason})"


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
        param="messages" if request.endpoint == "chat" else "prompt",
    )

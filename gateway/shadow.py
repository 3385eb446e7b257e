"""Learning from live traffic, beside it: some requests are answered again, and the cheaper answer is graded.

The tier that was asked first answers with signals, the dearest tier that the tenant may use answers too, and says
whether the cheaper answer is as good. What stays is a line without text, as `headrace calibrate` records; until then
the prompt is held in memory. Offering a request never waits and never fails; the work comes after all that anybody
waits for, and ends where the tiers get busy.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backends.backend import BackendError, Delta, Generation, Sampling, Unavailable
from backends.prompt import Prompt
from classifier import Assessment
from gateway.config import Config, ShadowSampling
from gateway.judges import Weights
from gateway.learning.grading import VERDICT, question, recorded, says_yes, text_of
from gateway.learning.recordings import Recording
from gateway.live import Salts
from gateway.metrics import Metrics
from gateway.prices import cost
from gateway.prompts import encode
from gateway.request import Request, Route
from gateway.sampling import sampling_of
from gateway.shadow_metrics import FAILED, RECORDED
from gateway.tiers import Replica, Tier
from gateway.weights import weights_of

logger = logging.getLogger(__name__)

SET = "traffic"
HOUR = 3600.0
PATIENCE = 300.0  # seconds that a request waits for a quiet moment
LOOK_AGAIN = 0.5  # seconds
LAST = 1000  # of all priorities
WANTED = "It is as good as this answer, which is known to be good, though it may say it in other words:\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    request: Request
    prompt: Prompt
    assessment: Assessment
    small: Tier
    large: Tier


class ShadowSampler:
    def __init__(
        self,
        settings: ShadowSampling,
        tiers: Sequence[Tier],
        weights: Mapping[str, Weights],
        secret: bytes,
        metrics: Metrics,
        *,
        default_max_tokens: int,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`weights`: what each replica runs, as calibrations know it; `draw`: from 0 to 1."""
        self._settings = settings
        self._tiers = tuple(tiers)
        self._weights = weights
        self._secret = secret
        self._salts = Salts(secret)
        self._metrics = metrics.shadow_samples
        self._default_max_tokens = default_max_tokens
        self._draw = draw
        self._clock = clock
        self._waiting: asyncio.Queue[_Offer] = asyncio.Queue(settings.max_waiting)
        self._taken: deque[float] = deque()  # when, within the last hour

    def offer(self, request: Request, prompt: Prompt, route: Route) -> None:
        """Of a request that is being answered. `prompt`: with what was recalled of its session."""
        allowed = [t for t in self._tiers if request.tenant.tiers is None or t.name in request.tenant.tiers]
        small = next((tier for tier in allowed if tier.name == route.order[0]), None)
        if route.assessment is None or small is None or small is allowed[-1] or not _plain(request, prompt):
            return
        if self._draw() >= self._settings.share:
            return
        if not self._within_rate():
            self._metrics.sample("rate")
            return
        offer = _Offer(
            request=request, prompt=prompt, assessment=route.assessment, small=small, large=allowed[-1]
        )
        try:
            self._waiting.put_nowait(offer)
        except asyncio.QueueFull:
            self._metrics.sample("queue")
        else:
            self._taken.append(self._clock())

    def _within_rate(self) -> bool:
        while self._taken and self._taken[0] <= self._clock() - HOUR:
            self._taken.popleft()
        return len(self._taken) < self._settings.per_hour

    async def run(self) -> None:
        """For ever, one request at a time."""
        while True:
            offer = await self._waiting.get()
            try:
                outcome = await self._sample(offer)
            except (BackendError, OSError) as error:
                logger.warning("a shadow sample failed: %s", getattr(error, "code", error))
                outcome = FAILED
            except Exception:
                logger.exception("a shadow sample failed")
                outcome = FAILED
            self._metrics.sample(outcome)

    async def _sample(self, offer: _Offer) -> str:
        """What became of it."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not self._calm(offer, own=0):
                    await asyncio.sleep(LOOK_AGAIN)
        except TimeoutError:
            return "load"
        work = asyncio.ensure_future(self._recording(offer))
        try:
            while not (await asyncio.wait({work}, timeout=LOOK_AGAIN))[0]:
                if not self._calm(offer, own=1):
                    return "load"
            await asyncio.to_thread(self._write, work.result())
            return RECORDED
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await work

    def _calm(self, offer: _Offer, own: int) -> bool:
        """Whether a replica of both tiers has little to do but `own` answers of ours."""
        return all(
            any(_load(replica, own) <= self._settings.max_load for replica in _able(tier))
            for tier in (offer.small, offer.large)
        )

    async def _recording(self, offer: _Offer) -> Recording:
        """Raises BackendError."""
        watched = sampling_of(offer.request, self._default_max_tokens, (), True)
        small, replica = await self._answer(offer, offer.small, offer.prompt, watched)
        plain = msgspec.structs.replace(watched, signals=False)
        large, _ = await self._answer(offer, offer.large, offer.prompt, plain)
        asked = question(_words(offer.prompt), text_of(small), WANTED + text_of(large))
        verdict, _ = await self._answer(offer, offer.large, asked, VERDICT)
        return recorded(
            small,
            sample=self._digest(offer),
            set=SET,
            tier=offer.small.name,
            ran=self._weights[replica],
            assessment=offer.assessment,
            good=says_yes(verdict),
        )

    async def _answer(
        self, offer: _Offer, tier: Tier, prompt: Prompt, sampling: Sampling
    ) -> tuple[list[Delta], str]:
        """The answer, entered into the books, and who gave it."""
        replica = tier.pick({})
        if replica is None:
            raise Unavailable(f"no replica of {tier.name} answers", "no_replica")
        encoded = await encode(prompt, [tier])
        room = max(1, replica.backend.context_length - encoded.length(replica))
        generation = Generation(
            id=f"{offer.request.id}-shadow",
            prompt=prompt,
            ids=encoded.of(replica),
            sampling=msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, room)),
            salt=self._salts[offer.request.tenant.name],
            traffic="batch",
            priority=LAST,
        )
        async with contextlib.aclosing(replica.backend.stream(generation)) as deltas:
            answer = [delta async for delta in deltas]
        usage = answer[-1].usage
        assert usage is not None
        self._metrics.used(tier.name, usage, cost(tier.price, usage))
        return answer, replica.name

    def _digest(self, offer: _Offer) -> str:
        """Of the prompt; keyed, so that nobody can find it out by trying. What is asked again is told apart."""
        asked = msgspec.msgpack.encode((offer.prompt, offer.request.id))
        return hmac.digest(self._secret, b"shadow:" + asked, "sha256").hex()[:32]

    def _write(self, recording: Recording) -> None:
        """One write for the whole line, as other workers write to the file too. Raises OSError."""
        path = Path(self._settings.recordings)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(recording) + b"\n")
        finally:
            os.close(descriptor)


def open_shadow(
    config: Config, tiers: Sequence[Tier], secret: bytes, metrics: Metrics
) -> ShadowSampler | None:
    """None where the configuration wants none. Raises OSError."""
    if config.shadow_sampling is None:
        return None
    weights = {f"{tier.name}/{n}": ran for tier in config.tiers for n, ran in enumerate(weights_of(tier))}
    return ShadowSampler(
        config.shadow_sampling,
        tiers,
        weights,
        secret,
        metrics,
        default_max_tokens=config.server.default_max_tokens,
    )


def _plain(request: Request, prompt: Prompt) -> bool:
    """A conversation with one answer in words: others cannot be graded so."""
    return (
        prompt.is_conversation and not prompt.speaks_of_tools and request.n == 1 and request.grammar is None
    )


def _words(prompt: Prompt) -> str:
    return next((each.content for each in reversed(prompt.messages) if each.role == "user"), "")


def _able(tier: Tier) -> list[Replica]:
    return [replica for replica in tier.replicas if replica.backend.available]


def _load(replica: Replica, own: int) -> float:
    """Of what it runs at a time, without `own`."""
    return max(0.0, replica.load - (own / replica.room if replica.room else 0.0))

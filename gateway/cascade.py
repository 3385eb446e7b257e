"""Running a route: attempts until one answers, judged before anything of them is sent.

An attempt may be repeated, or answered by a dearer tier instead, only while the client has seen nothing. After that its
errors are final, and its tier never changes.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field

import msgspec

from backends.backend import BackendError, DeadlineExceeded, Delta, Rejected, Unavailable
from backends.deadline import Deadline
from gateway.attempt_span import Followed
from gateway.cascade_metrics import CascadeMetrics
from gateway.holding import Ahead, Held
from gateway.judges import Brief
from gateway.judging import judge
from gateway.ledger import ABORTED, ESCALATED, Entry, Ledger
from gateway.request import Route
from gateway.stakes import Verdict
from gateway.telemetry import Traces
from gateway.tiers import Replica, Tier

MAX_ATTEMPTS = 4  # three tiers, and the first of them again where the others are full
DEADLINE_GRACE = 0.5  # seconds that a backend gets to end a generation by itself before the gateway does

Start = Callable[[Tier, Replica, Entry, bool], AsyncGenerator[Delta, None]]
"""Whether the attempt is judged comes last: then its deltas have signals."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A generation whose first deltas, `held`, have come. `rest` continues it; closing `rest` aborts it."""

    tier: Tier
    replica: Replica
    entry: Entry  # of the ledger
    held: Sequence[Delta]
    rest: Ahead
    verdicts: tuple[Verdict, ...] = ()  # of this and the ones before it, as far as they were judged


def _never(tier: Tier, replica: Replica) -> Brief | None:
    return None


async def _nothing(tier: Tier, replica: Replica) -> bool:
    return False


def nobody(wanting: Sequence[str], tier: str) -> bool:
    """No tier takes over from others."""
    return False


def _free(tier: Tier, replica: Replica, entry: Entry, held: Held) -> None:
    """Nobody keeps books."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How one request runs.

    `cached`: prompt tokens held, by replica name; `brief`: how an attempt there is judged, None if it is not; `warm`:
    let a replica read the prompt; `set_aside`: is told of each attempt that does not answer after all; `follows`:
    whether a tier may answer where the answers of others were found wanting.
    """

    route: Route
    cached: Mapping[str, int]
    start: Start
    brief: Callable[[Tier, Replica], Brief | None] = _never
    warm: Callable[[Tier, Replica], Awaitable[bool]] = _nothing
    set_aside: Callable[[Tier, Replica, Entry, Held], None] = _free
    attempts: int = MAX_ATTEMPTS
    follows: Callable[[Sequence[str], str], bool] = nobody


async def run(
    plan: Plan, tiers: Mapping[str, Tier], ledger: Ledger, metrics: CascadeMetrics, traces: Traces
) -> Attempt:
    """Try the route's tiers in order, each on its best replicas, until the answer of one is kept.

    `tiers`: the cheapest first; every attempt is entered into `ledger`. Raises the last BackendError when all attempts
    failed, and at once one that no other replica could mend.
    """
    climb = _Climb(plan, tiers, ledger, metrics, traces)
    try:
        return await climb.answer()
    finally:
        await climb.close()


@dataclass(slots=True, kw_only=True)
class _Begun:
    """An attempt that is not told to anybody yet."""

    tier: Tier
    replica: Replica
    entry: Entry
    deltas: Ahead
    held: Held
    brief: Brief | None
    above: Sequence[str]  # the tiers that could take over


@dataclass(slots=True)
class _Warming:
    """A replica that reads the prompt, so that its tier can take over sooner."""

    tier: Tier
    replica: Replica
    task: "asyncio.Task[bool]"


@dataclass(slots=True)
class _Climb:
    """One run. What is open when it is closed is aborted."""

    _plan: Plan
    _tiers: Mapping[str, Tier]
    _ledger: Ledger
    _metrics: CascadeMetrics
    _traces: Traces
    _tried: set[str] = field(default_factory=set)  # replicas that failed, or whose answer was not good enough
    _count: int = 0
    _wanting: tuple[str, ...] = ()  # tiers whose answers were not good enough
    _verdicts: tuple[Verdict, ...] = ()
    _open: _Begun | None = None
    _spare: _Begun | None = None  # a whole answer that was found wanting, for when nobody else answers
    _warming: _Warming | None = None
    _failure: BackendError = field(default_factory=lambda: Unavailable("no replica answers", "no_replica"))

    async def answer(self) -> Attempt:
        order = list(self._plan.route.order)
        try:
            while order:
                begun = await self._begin(self._tiers[order[0]], order) if self._may(order[0]) else None
                if begun is None:
                    order.pop(0)
                elif (onward := await self._judged(begun)) is not None:
                    order = _from(order, onward)
                else:
                    return self._committed(begun)
        except BackendError:
            if self._spare is None:
                raise
        if self._spare is None:
            raise self._failure
        spare, self._spare = self._spare, None
        return self._committed(spare)

    def _may(self, tier: str) -> bool:
        """Whether the tier may be asked after what was found, and is better than what is there already."""
        names = list(self._tiers)
        if self._spare is not None and names.index(tier) <= names.index(self._spare.tier.name):
            return False
        return not self._wanting or self._plan.follows(self._wanting, tier)

    def _committed(self, begun: _Begun) -> Attempt:
        self._open = None
        return Attempt(
            tier=begun.tier,
            replica=begun.replica,
            entry=begun.entry,
            held=begun.held.deltas,
            rest=begun.deltas,
            verdicts=self._verdicts,
        )

    async def _begin(self, tier: Tier, order: Sequence[str]) -> _Begun | None:
        """On the best replica that gives a first delta. None where none is left to try. Raises BackendError."""
        while self._count < self._plan.attempts and (replica := self._pick(tier)) is not None:
            if self._warming is not None and self._warming.replica is replica:
                await self._cool(used=True)  # before it begins, so that the prompt is not read twice at once
            self._count += 1
            self._tried.add(replica.name)
            self._open = begun = self._start(tier, replica, self._above(tier, order))
            if await self._went_well(begun, self._first(begun)):
                return begun
        return None

    def _start(self, tier: Tier, replica: Replica, above: Sequence[str]) -> _Begun:
        brief = self._plan.brief(tier, replica) if above else None
        entry = self._ledger.open(tier.name, replica.name, replica.model)
        return _Begun(
            tier=tier,
            replica=replica,
            entry=entry,
            deltas=Ahead(self._plan.start(tier, replica, entry, brief is not None)),
            held=Held(brief, above),
            brief=brief,
            above=above,
        )

    def _pick(self, tier: Tier) -> Replica | None:
        """Whoever has read the prompt in advance has most of it in its cache."""
        cached = dict(self._plan.cached)
        if self._warming is not None and self._warming.tier is tier:
            cached[self._warming.replica.name] = sum(cached.values()) + 1
        return tier.pick(cached, self._tried)

    def _above(self, tier: Tier, order: Sequence[str]) -> Sequence[str]:
        """The dearer tiers of the route that could take over now, the cheapest first."""
        if self._count >= self._plan.attempts:
            return ()
        names, wanting = list(self._tiers), (*self._wanting, tier.name)
        dearer = (name for name in names[names.index(tier.name) + 1 :] if name in order)
        return tuple(
            name
            for name in dearer
            if self._plan.follows(wanting, name) and self._pick(self._tiers[name]) is not None
        )

    async def _first(self, begun: _Begun) -> None:
        begun.held.take(await anext(begun.deltas))
        begun.entry.begun()

    async def _went_well(self, begun: _Begun, work: Awaitable[None]) -> bool:
        """False where another attempt may go better. Raises BackendError where none could."""
        try:
            await work
        except StopAsyncIteration:
            self._failure = Unavailable("the backend ended without an answer", "upstream_eof")
        except BackendError as error:
            self._failure = error
        else:
            return True
        begun.entry.ends(self._failure.code)
        await self._drop(begun)
        if not (self._failure.retryable or self._refused_above):
            raise self._failure
        return False

    @property
    def _refused_above(self) -> bool:
        """Whether a tier that was only asked because of a verdict cannot take the request: another one has."""
        return bool(self._wanting) and isinstance(self._failure, Rejected)

    async def _judged(self, begun: _Begun) -> str | None:
        """None where the answer is kept, else the tier to go on with. Raises BackendError."""
        brief = begun.brief
        if brief is None:
            return None
        began = asyncio.get_running_loop().time()
        with self._traces.span("headrace.judge", tier=begun.tier.name) as span:
            if not await self._went_well(begun, self._hold(begun, brief, began)):
                return begun.tier.name
            seconds = asyncio.get_running_loop().time() - began
            verdict = self._verdict(begun, brief)
            self._metrics.held(begun.tier.name, seconds, judged=verdict is not None)
            if verdict is not None:
                span.set_attribute("headrace.confidence", verdict.sight.confidence)
                span.set_attribute("headrace.kept", verdict.kept)
        if verdict is None or verdict.kept:
            return None
        await self._escalate(begun, verdict.onward.tier)
        return verdict.onward.tier

    def _verdict(self, begun: _Begun, brief: Brief) -> Verdict | None:
        """None where nothing can be said of the answer."""
        sight, onward = begun.held.sight, begun.held.onward
        if sight is None or onward is None:
            return None
        begun.entry.confidence, begun.entry.judged_after = sight.confidence, sight.tokens
        threshold = None if brief.stakes.by_worth else brief.stakes.threshold
        verdict = Verdict(tier=begun.tier.name, sight=sight, threshold=threshold, onward=onward)
        self._verdicts = (*self._verdicts, verdict)
        return verdict

    async def _hold(self, begun: _Begun, brief: Brief, began: float) -> None:
        """Until it is decided. Raises StopAsyncIteration, BackendError."""
        now, terms = asyncio.get_running_loop().time, brief.terms
        while True:
            action = judge(terms, begun.held.seen(now() - began, warming=self._warming is not None))
            if action in ("commit", "escalate"):
                return
            if action == "warm":
                self._warm(begun)
            elif action == "drop":
                await self._cool(used=False)
            left = None if terms.when == "end" else began + terms.seconds - now()
            delta = await begun.deltas.within(left)
            if delta is not None:
                begun.held.take(delta)

    async def _escalate(self, begun: _Begun, onward: str) -> None:
        self._wanting = (*self._wanting, begun.tier.name)
        self._metrics.escalated(begun.tier.name, onward)
        if begun.held.last is not None:  # nothing of it runs any more
            if self._spare is not None:
                await self._drop(self._spare)
            self._spare, self._open = begun, None
        else:
            begun.entry.ends(ESCALATED)
            await self._drop(begun)
            self._tried.discard(begun.replica.name)  # it may answer after all where no dearer tier does

    def _warm(self, begun: _Begun) -> None:
        assert begun.held.onward is not None  # it has a margin
        tier = self._tiers[begun.held.onward.tier]
        replica = self._pick(tier)
        if replica is not None:
            self._warming = _Warming(tier, replica, asyncio.ensure_future(self._read(tier, replica)))

    async def _read(self, tier: Tier, replica: Replica) -> bool:
        """False where it cannot be done. What goes wrong there is no trouble of this request."""
        with contextlib.suppress(BackendError):
            return await self._plan.warm(tier, replica)
        return False

    async def _cool(self, *, used: bool) -> None:
        """Stop reading in advance; what has been read stays cached."""
        if self._warming is None:
            return
        warming, self._warming = self._warming, None
        warming.task.cancel()
        [read] = await asyncio.gather(warming.task, return_exceptions=True)
        if read is not False:
            self._metrics.warmed(warming.tier.name, used=used)

    async def _drop(self, begun: _Begun) -> None:
        """Abort what still runs of it; it is not told to anybody."""
        if begun is self._open:
            self._open = None
        begun.entry.ends(ABORTED if begun is not self._spare else ESCALATED)
        await begun.deltas.aclose()
        self._plan.set_aside(begun.tier, begun.replica, begun.entry, begun.held)

    async def close(self) -> None:
        """What nobody needs any more, however it came to that."""
        for begun in (self._open, self._spare):
            if begun is not None:
                await self._drop(begun)
        await self._cool(used=False)


def _from(order: Sequence[str], tier: str) -> list[str]:
    """The order beginning with `tier`; what is passed over comes last."""
    at = order.index(tier)
    return [*order[at:], *order[:at]]


async def within(
    attempt: Followed, deadline: float, ready: Callable[[], Awaitable[None]] | None = None
) -> AsyncGenerator[Delta, None]:
    """Its deltas, ended by DeadlineExceeded when the backend itself does not end them in time.

    `deadline`: on the event loop's clock; `ready`: what the first of them waits for.
    """
    with attempt as deltas, closing(Deadline(deadline + DEADLINE_GRACE)) as end:
        async with aclosing(deltas):
            while True:
                try:
                    delta = await end.wait(anext(deltas, None))
                except TimeoutError:
                    raise DeadlineExceeded("the request ran out of time") from None
                if delta is None:
                    return
                attempt.see(delta)
                if ready is not None:
                    await ready()
                    ready = None
                yield delta

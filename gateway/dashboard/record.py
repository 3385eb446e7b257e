"""A request that is over, as the page shows it: times, counts and words of ours, nothing that anybody has written."""

import time
from collections.abc import Iterator

import msgspec

from gateway.exchange import Exchange
from gateway.ledger import Entry, Ledger
from gateway.request import Route


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One bar of the waterfall. Times in seconds from the request's arrival; `within`: the attempt it is a part of."""

    name: str
    begin: float
    end: float
    within: int | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the ledger. `outcome`: see `gateway.ledger`; times in seconds from the request's arrival."""

    tier: str
    replica: str
    outcome: str
    begin: float
    first: float | None
    end: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: float
    billed: bool
    confidence: float | None  # the last P(good) of its answer, where it was judged
    judged_after: int | None  # tokens of the answer by then


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """`seconds`: all of it; `first_text`: to the first text; `largest`: money that the largest tier would have cost."""

    id: str
    at: float  # of its arrival, Unix seconds
    endpoint: str
    tenant: str | None
    status: int
    code: str | None
    tier: str | None
    reason: str | None
    task: str | None
    good: dict[str, float]  # P(good) by tier, where it was estimated
    seconds: float
    first_text: float | None
    prompt_tokens: int  # of all attempts that came to something, as the two below
    cached_tokens: int
    completion_tokens: int
    cost: float
    largest: float
    steps: tuple[Step, ...]
    attempts: tuple[Attempt, ...]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of an exchange when it is over; a `Record` is only made of it when somebody looks."""

    id: str
    arrived: float  # Unix seconds
    endpoint: str
    tenant: str | None
    status: int
    code: str | None
    tier: str | None
    route: Route | None
    reason: str | None
    seconds: float
    first_text: float | None
    ledger: Ledger

    @property
    def tokens(self) -> int:
        """Of prompts and answers of all attempts."""
        used = (entry.usage for entry in self.ledger.entries if entry.usage is not None)
        return sum(usage.prompt_tokens + usage.completion_tokens for usage in used)

    @property
    def input_tokens(self) -> int:
        """Of `tokens`, those of prompts."""
        return sum(entry.usage.prompt_tokens for entry in self.ledger.entries if entry.usage is not None)


def ended(exchange: Exchange) -> Ended:
    """Of an exchange that ends now. Its answer is let go, as that holds text."""
    seconds, answer = exchange.seconds, exchange.answer
    return Ended(
        id=exchange.id,
        arrived=time.time() - seconds,
        endpoint=exchange.endpoint,
        tenant=None if exchange.tenant is None else exchange.tenant.name,
        status=exchange.status,
        code=None if exchange.error is None else exchange.error.code,
        tier=None if answer is None else answer.tier,
        route=None if answer is None else answer.route,
        reason=None if answer is None else answer.headers.get("x-headrace-reason", answer.route.reason),
        seconds=seconds,
        first_text=exchange.first_text,
        ledger=exchange.ledger,
    )


def record_of(call: Ended) -> Record:
    assessment = None if call.route is None else call.route.assessment
    attempts = tuple(_attempt(entry, call.arrived) for entry in call.ledger.entries)
    return Record(
        id=call.id,
        at=call.arrived,
        endpoint=call.endpoint,
        tenant=call.tenant,
        status=call.status,
        code=call.code,
        tier=call.tier,
        reason=call.reason,
        task=None if assessment is None else assessment.task,
        good={} if assessment is None else dict(assessment.good),
        seconds=call.seconds,
        first_text=call.first_text,
        prompt_tokens=sum(attempt.prompt_tokens for attempt in attempts),
        cached_tokens=sum(attempt.cached_tokens for attempt in attempts),
        completion_tokens=sum(attempt.completion_tokens for attempt in attempts),
        cost=sum(attempt.cost for attempt in attempts),
        largest=call.ledger.largest,
        steps=tuple(sorted(_steps(call), key=lambda step: (step.begin, -step.end))),
        attempts=attempts,
    )


def _attempt(entry: Entry, arrived: float) -> Attempt:
    usage = entry.usage
    return Attempt(
        tier=entry.tier,
        replica=entry.replica,
        outcome=entry.outcome,
        begin=entry.started - arrived,
        first=None if entry.first is None else entry.first - arrived,
        end=None if entry.ended is None else entry.ended - arrived,
        prompt_tokens=0 if usage is None else usage.prompt_tokens,
        cached_tokens=0 if usage is None else usage.cached_tokens,
        completion_tokens=0 if usage is None else usage.completion_tokens,
        cost=entry.cost,
        billed=entry.billed,
        confidence=entry.confidence,
        judged_after=entry.judged_after,
    )


def _steps(call: Ended) -> Iterator[Step]:
    arrived = call.arrived
    for stage in call.ledger.stages:
        yield _step(stage.name.removeprefix("headrace."), stage.started - arrived, stage.ended - arrived)
    for number, entry in enumerate(call.ledger.entries):
        whole = call.seconds if entry.ended is None else entry.ended - arrived
        yield _step(entry.replica, entry.started - arrived, whole)
        for name, begin, end in _parts(entry):
            if begin is not None and end is not None:
                yield _step(name, begin - arrived, end - arrived, number)


def _parts(entry: Entry) -> tuple[tuple[str, float | None, float | None], ...]:
    """Of an engine of our own its stages, of any other server what can be seen from here."""
    times = entry.timings
    if times is None:
        return ("first token", entry.started, entry.first), ("answer", entry.first, entry.ended)
    return (
        ("queue", times.arrived, times.scheduled),
        ("prefill", times.scheduled, times.first_token),
        ("decode", times.first_token, times.finished),
    )


def _step(name: str, begin: float, end: float, within: int | None = None) -> Step:
    """Clocks of two processes may differ by a little: nothing begins before the request or ends before it begins."""
    begin = max(0.0, begin)
    return Step(name=name, begin=round(begin, 6), end=round(max(begin, end), 6), within=within)

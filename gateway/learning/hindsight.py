"""What another threshold would have cost and kept on requests of the past, from the gateway's records without content.

What happened is known; the rest is estimated, and how much of it that is is told. An answer that was given up is taken
to have become as long as the one that the client got; one that a dearer tier never gave likewise, and to be as good as
the prompt alone promised.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backends.backend import Usage
from gateway.config import Price
from gateway.ledger import ANSWERED, ESCALATED
from gateway.prices import cost
from gateway.records import SUFFIX, VERSION

DAY = 24 * 3600.0


class RecordError(ValueError):
    """The message names the file, the line and the field."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """As `gateway.dashboard.record.Attempt`."""

    tier: str
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    confidence: float | None
    judged_after: int | None


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a record that tell of its answers; others are passed over."""

    v: int
    at: float
    tier: str | None
    good: dict[str, float]
    attempts: tuple[Attempt, ...]
    order: tuple[str, ...] | None

    @property
    def judged(self) -> bool:
        """Whether it was answered, and an answer to it was judged."""
        answered = any(attempt.outcome == ANSWERED for attempt in self.attempts)
        return answered and any(attempt.confidence is not None for attempt in self.attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Sums over requests. `kept`: those that the tier answered which was asked first; `good`: the expected number of
    good answers, over the requests of which something is known of that; `estimated`: those of which something had to
    be."""

    requests: int
    kept: int
    cost: float
    good: float
    known: int
    estimated: int


def load(folder: Path, days: float, now: float | None = None) -> list[Past]:
    """Requests whose answers were judged, of the last so many days. Raises RecordError, OSError."""
    since = (time.time() if now is None else now) - days * DAY
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise RecordError(f"{folder}: holds no records; `telemetry.records` names the folder that gets them")
    return [past for file in files for past in _read(file) if past.at >= since and past.judged]


def _read(file: Path) -> Iterator[Past]:
    decoder = msgspec.json.Decoder(Past)
    lines = file.read_bytes().split(b"\n")[:-1]  # what has no end is being written
    for number, line in enumerate(lines, 1):
        try:
            past = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RecordError(f"{file}, line {number}: {error}") from error
        if past.v != VERSION:
            raise RecordError(f"{file}, line {number}: v is {past.v}, not {VERSION}")
        yield past


def replay(
    requests: Sequence[Past], prices: dict[str, Price], tiers: Sequence[str], threshold: float
) -> Replayed:
    """`tiers`: the cheapest first. Requests of tiers that are not among them are left out."""
    ways = [
        _way(past, prices, tiers, threshold)
        for past in requests
        if all(attempt.tier in prices for attempt in past.attempts)
    ]
    good = [way.good for way in ways if way.good is not None]
    return Replayed(
        requests=len(ways),
        kept=sum(way.kept for way in ways),
        cost=sum(way.cost for way in ways),
        good=sum(good),
        known=len(good),
        estimated=sum(way.estimated for way in ways),
    )


@dataclass(frozen=True, slots=True)
class _Way:
    """What one request would have come to."""

    kept: bool
    cost: float
    good: float | None
    estimated: bool


def _way(past: Past, prices: dict[str, Price], tiers: Sequence[str], threshold: float) -> _Way:
    attempts = {each.tier: each for each in past.attempts if each.outcome in (ANSWERED, ESCALATED)}
    first = next(each.tier for each in past.attempts if each.tier in attempts)
    above = [tier for tier in tiers[tiers.index(first) + 1 :] if tier in (past.order or ())]
    answer = next(each for each in past.attempts if each.outcome == ANSWERED)
    spent, estimated = 0.0, False
    for number, tier in enumerate((first, *above)):
        attempt, last = attempts.get(tier), number == len(above)
        if attempt is None:  # nobody asked it
            return _Way(False, spent + _cost(prices[tier], answer), past.good.get(tier), True)
        sure = attempt.confidence is None or attempt.confidence >= threshold
        if sure or last:
            whole = attempt.outcome == ANSWERED
            length = attempt.completion_tokens if whole else answer.completion_tokens
            good = past.good.get(tier) if attempt.confidence is None else attempt.confidence
            return _Way(
                number == 0, spent + _cost(prices[tier], attempt, length), good, estimated or not whole
            )
        spent += _cost(prices[tier], attempt, attempt.judged_after)
    raise AssertionError("the dearest tier ends it")


def _cost(price: Price, attempt: Attempt, tokens: int | None = None) -> float:
    usage = Usage(
        prompt_tokens=attempt.prompt_tokens,
        cached_tokens=attempt.cached_tokens,
        completion_tokens=attempt.completion_tokens if tokens is None else tokens,
    )
    return cost(price, usage)

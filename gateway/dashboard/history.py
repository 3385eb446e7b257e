"""The last ten minutes, in buckets of five seconds: by tier for the charts, by tenant for the last minute."""

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec

from gateway.dashboard.record import Ended

STEP = 5  # seconds
BUCKETS = 120
A_MINUTE = 60 // STEP
MAX_TIMES = 256  # first-token times kept of a tier in one bucket; of more, the first ones speak for all
REFUSED = 429


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One tier's buckets, the oldest first. Times in seconds, None where nothing was answered; tokens per second."""

    requests: list[int]
    tokens: list[float]
    first_p50: list[float | None]
    first_p95: list[float | None]


class Used(msgspec.Struct, kw_only=True):
    """By one tenant in some time: requests that came, those refused by limits, tokens of those that are over."""

    requests: int = 0
    refused: int = 0
    tokens: int = 0
    input_tokens: int = 0  # of `tokens`

    def add(self, other: "Used") -> None:
        self.requests += other.requests
        self.refused += other.refused
        self.tokens += other.tokens
        self.input_tokens += other.input_tokens


class Made(msgspec.Struct):
    """By one tier. `tokens`: also of answers that are not over; `first`: seconds to the first text of answers."""

    requests: int = 0
    tokens: float = 0.0
    first: list[float] = []

    def add(self, other: "Made") -> None:
        self.requests += other.requests
        self.tokens += other.tokens
        self.first += other.first[: MAX_TIMES - len(self.first)]


class Bucket(msgspec.Struct):
    """`STEP` seconds; `number` counts such by the clock of the history."""

    number: int
    tiers: dict[str, Made] = {}
    tenants: dict[str, Used] = {}

    def tier(self, name: str) -> Made:
        return self.tiers.setdefault(name, Made())

    def tenant(self, name: str) -> Used:
        return self.tenants.setdefault(name, Used())


class History:
    """Bounded, whatever comes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, never put back, and the same for all processes whose histories are added up."""
        self._clock = clock
        self._buckets: deque[Bucket] = deque([Bucket(int(clock()) // STEP)], maxlen=BUCKETS)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The oldest first."""
        return tuple(self._buckets)

    def add(self, buckets: Iterable[Bucket]) -> None:
        """What another history has, of the time that this one covers; it may begin earlier then."""
        now = self._now().number
        known = {bucket.number: bucket for bucket in self._buckets}
        for bucket in buckets:
            mine = known.setdefault(bucket.number, Bucket(bucket.number))
            for name, made in bucket.tiers.items():
                mine.tier(name).add(made)
            for name, used in bucket.tenants.items():
                mine.tenant(name).add(used)
        numbers = range(max(min(known), now - BUCKETS + 1), now + 1)
        self._buckets = deque((known.get(number) or Bucket(number) for number in numbers), maxlen=BUCKETS)

    def finished(self, call: Ended) -> None:
        """A request that has just ended. Its tokens count towards its tenant; `generated` tells of a tier's."""
        bucket = self._now()
        if call.tier is not None:
            tier = bucket.tier(call.tier)
            tier.requests += 1
            if call.first_text is not None and len(tier.first) < MAX_TIMES:
                tier.first.append(call.first_text)
        if call.tenant is not None:
            used = bucket.tenant(call.tenant)
            used.requests += 1
            used.refused += call.status == REFUSED
            used.tokens += call.tokens
            used.input_tokens += call.input_tokens

    def generated(self, tier: str, tokens: float, seconds: float = 0.0) -> None:
        """Tokens that a tier has made just now, or evenly over the last `seconds`."""
        now = self._now().number
        begun = min(now, max(int(self._clock() - seconds) // STEP, self._buckets[0].number))
        lot = [bucket for bucket in self._buckets if bucket.number >= begun]
        for bucket in lot:
            bucket.tier(tier).tokens += tokens / len(lot)

    def series(self, tier: str) -> Series:
        self._now()
        past = [bucket.tiers.get(tier, Made()) for bucket in self._buckets]
        return Series(
            requests=[at.requests for at in past],
            tokens=[round(at.tokens / STEP, 2) for at in past],
            first_p50=[_rounded(quantile(at.first, 0.5)) for at in past],
            first_p95=[_rounded(quantile(at.first, 0.95)) for at in past],
        )

    def first_tokens(self, tier: str) -> list[float]:
        """Seconds to first text of all answers in the history."""
        self._now()
        return [
            first for bucket in self._buckets if tier in bucket.tiers for first in bucket.tiers[tier].first
        ]

    def last_minute(self) -> dict[str, Used]:
        """What each tenant has used; those who used nothing are left out."""
        self._now()
        used: defaultdict[str, Used] = defaultdict(Used)
        for bucket in islice(reversed(self._buckets), A_MINUTE):
            for tenant, part in bucket.tenants.items():
                used[tenant].add(part)
        return used

    def _now(self) -> Bucket:
        """The bucket that is open now. Time that passed without a word left empty ones."""
        number = int(self._clock()) // STEP
        last = self._buckets[-1].number
        for missing in range(max(last + 1, number - BUCKETS + 1), number + 1):
            self._buckets.append(Bucket(missing))
        return self._buckets[-1]


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of them do not exceed (nearest rank); None where there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)

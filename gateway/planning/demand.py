"""From users to requests a second, and from these to replicas, GPUs and money."""

import math
from dataclasses import dataclass

from gateway.planning.replica import Replica

DAY, HOUR, MONTH = 86400, 3600, 730  # seconds, seconds, hours


@dataclass(frozen=True, slots=True)
class Mix:
    """What a replica does with requests of the assumed length when its batch is full."""

    batch: int
    read: float  # seconds of the replica for one prompt
    written: float  # seconds of the replica for one answer, its part of the steps
    first_token: float  # seconds that a client waits
    whole: float  # seconds until the answer ends

    @property
    def requests(self) -> float:
        """A second: 1 / (read + written)."""
        return 1 / (self.read + self.written)


def mix(replica: Replica) -> Mix:
    """The batch that fits with whole prompts and answers; `replica` has room for at least one.

    written = answer · step / batch. The first token comes after half a step that is under way, the queue, and the
    prompt; the queue is that of M/D/1, load / (2 · (1 - load)) · read (Pollaczek and Khinchine).
    """
    given = replica.given
    batch = min(given.max_batch, replica.sequences(given.prompt_tokens + given.answer_tokens))
    step = replica.step(batch, given.prompt_tokens + given.answer_tokens / 2)
    read = replica.prefill(max(1, round(given.prompt_tokens * (1 - given.cached))))
    first = step / 2 + given.load / (2 * (1 - given.load)) * read + read
    return Mix(
        batch, read, given.answer_tokens * step / batch, first, first + (given.answer_tokens - 1) * step
    )


def dollars_per_million(replica: Replica, tokens_per_second: float) -> float | None:
    """price · GPUs / (3,600 · tokens/s) · 10⁶, of replicas that are never idle."""
    if replica.gpu.price is None:
        return None
    return replica.gpu.price * replica.degree / HOUR / tokens_per_second * 1e6


@dataclass(frozen=True, slots=True)
class Fleet:
    """`prefill_gpus` and `decode_gpus`: the pools, where prompts are read and answers written on different GPUs."""

    peak_requests_per_s: float
    in_flight: float
    replicas: int
    gpus: int
    prefill_gpus: int
    decode_gpus: int
    usd_per_month: float | None


def peak_rate(users: int, requests_per_user: float, peak: float) -> float:
    """Requests a second: users · requests / 86,400 · peak."""
    return users * requests_per_user / DAY * peak


def fleet(replica: Replica, users: int) -> Fleet:
    """replicas = ⌈peak / (requests/s of one · load)⌉, cost = GPUs · price · 730 hours; in flight are, by Little's law,
    as many requests as come while one lasts."""
    given, each = replica.given, mix(replica)
    peak = peak_rate(users, given.requests_per_user, given.peak)

    def gpus(seconds: float) -> int:
        return max(1, math.ceil(peak * seconds / given.load)) * replica.degree

    count = gpus(each.read + each.written)
    return Fleet(
        peak_requests_per_s=peak,
        in_flight=peak * each.whole,
        replicas=count // replica.degree,
        gpus=count,
        prefill_gpus=gpus(each.read),
        decode_gpus=gpus(each.written),
        usd_per_month=None if replica.gpu.price is None else count * replica.gpu.price * MONTH,
    )

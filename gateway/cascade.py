"""Running a route: one attempt that answers, with failover to other replicas and tiers before the first delta.

An attempt may be repeated only while the client has seen nothing. After the first delta its errors are final.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass

from backends.backend import BackendError, DeadlineExceeded, Delta, Unavailable
from backends.deadline import Deadline
from gateway.ledger import Entry, Ledger
from gateway.request import Route
from gateway.tiers import Replica, Tier

MAX_ATTEMPTS = 3
DEADLINE_GRACE = 0.5  # seconds that a backend gets to end a generation by itself before the gateway does

Start = Callable[[Tier, Replica], AsyncGenerator[Delta, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A generation whose first delta has come. `rest` continues it; closing `rest` aborts it."""

    tier: Tier
    replica: Replica
    entry: Entry  # of the ledger
    first: Delta
    rest: AsyncGenerator[Delta, None]


async def run(
    route: Route, tiers: Mapping[str, Tier], cached: Mapping[str, int], start: Start, ledger: Ledger
) -> Attempt:
    """Try the route's tiers in order, each on its best replicas, until one gives a first delta.

    `cached`: prompt tokens held, by replica name; every attempt is entered into `ledger`. Raises the last
    BackendError when all attempts failed, and at once one that no other replica could mend.
    """
    tried: set[str] = set()
    failure: BackendError = Unavailable("no replica answers", "no_replica")
    for name in route.order:
        tier = tiers[name]
        while len(tried) < MAX_ATTEMPTS and (replica := tier.pick(cached, tried)) is not None:
            tried.add(replica.name)
            entry = ledger.open(tier.name, replica.name)
            deltas = start(tier, replica)
            try:
                first = await anext(deltas)
            except StopAsyncIteration:
                failure = Unavailable("the backend ended without an answer", "upstream_eof")
                entry.failed(failure.code)
            except BackendError as error:
                entry.failed(error.code)
                if not error.retryable:
                    raise
                failure = error
            else:
                entry.begun()
                return Attempt(tier=tier, replica=replica, entry=entry, first=first, rest=deltas)
    raise failure


async def within(deltas: AsyncGenerator[Delta, None], deadline: float) -> AsyncGenerator[Delta, None]:
    """The same deltas, ended by DeadlineExceeded when the backend itself does not end them in time.

    `deadline`: on the event loop's clock.
    """
    with closing(Deadline(deadline + DEADLINE_GRACE)) as end:
        async with aclosing(deltas):
            while True:
                try:
                    delta = await end.wait(anext(deltas, None))
                except TimeoutError:
                    raise DeadlineExceeded("the request ran out of time") from None
                if delta is None:
                    return
                yield delta

"""What the gateway remembers of itself for whoever looks: in memory, bounded, without content."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from backends.wire import Load
from gateway.dashboard.history import History
from gateway.dashboard.record import Ended, Record, ended, record_of
from gateway.dashboard.share import Share, Standing
from gateway.dashboard.state import Brief
from gateway.exchange import Exchange
from gateway.metrics import ANSWERING

KEPT = 500  # requests
LOOK_AGAIN = 0.02  # seconds


class Watch:
    """Told of every call and of every engine's load."""

    def __init__(self, engines: Mapping[str, str], history: History | None = None) -> None:
        """`engines`: by name ("7b/0") the model; other replicas tell of their tokens only when an answer ends."""
        self.history = history or History()
        self._started = time.time()
        self.loads: dict[str, Load] = {}
        self._engines = frozenset(engines)
        self._running: dict[int, Exchange] = {}
        self._ended: deque[Ended] = deque(maxlen=KEPT)

    @contextmanager
    def running(self, exchange: Exchange) -> Iterator[None]:
        """Around a call. Only those are kept that ask for an answer."""
        if exchange.endpoint not in ANSWERING:
            yield
            return
        self._running[id(exchange)] = exchange
        try:
            yield
        finally:
            del self._running[id(exchange)]
            self._finished(ended(exchange))

    def _finished(self, call: Ended) -> None:
        self._ended.append(call)
        self.history.finished(call)
        for entry in call.ledger.entries:
            if entry.replica not in self._engines and entry.usage is not None:
                seconds = 0.0 if entry.first is None else time.time() - entry.first
                self.history.generated(entry.tier, entry.usage.completion_tokens, seconds)

    def load(self, load: Load) -> None:
        """What an engine says of itself; its counters begin again with each start of its process."""
        before = self.loads.get(load.engine)
        known = before.generation_tokens if before and before.incarnation == load.incarnation else 0
        self.history.generated(load.engine.rpartition("/")[0], load.generation_tokens - known)
        self.loads[load.engine] = load

    def share(
        self,
        *,
        leaving: bool = False,
        latest: tuple[Brief, ...] = (),
        ready: Mapping[str, bool] | None = None,
        replicas: Mapping[str, Standing] | None = None,
    ) -> Share:
        """What it has seen, beside what others know; a process without tiers has nothing to say of them."""
        return Share(
            started=self._started,
            leaving=leaving,
            running=dict(self.running_by_tenant()),
            buckets=self.history.buckets,
            loads=self.loads,
            latest=latest,
            ready=dict(ready or {}),
            replicas=dict(replicas or {}),
        )

    def running_by_tenant(self) -> Counter[str]:
        return Counter(e.tenant.name for e in self._running.values() if e.tenant is not None)

    async def settled(self, request_id: str, patience: float) -> Record | None:
        """As `find`; a request that has not quite ended gets up to `patience` seconds for it.

        A client has its answer a moment before that is written down.
        """
        end = time.monotonic() + patience
        while self._runs(request_id) and time.monotonic() < end:
            await asyncio.sleep(LOOK_AGAIN)
        return self.find(request_id)

    def _runs(self, request_id: str) -> bool:
        return any(exchange.id == request_id for exchange in self._running.values())

    def latest(self, count: int) -> list[Record]:
        """The newest first."""
        return [record_of(call) for call in list(self._ended)[: -count - 1 : -1]]

    def find(self, request_id: str) -> Record | None:
        """By its x-request-id, the newest of that name; None when it is not kept any more."""
        return next((record_of(call) for call in reversed(self._ended) if call.id == request_id), None)

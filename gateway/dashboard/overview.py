"""Puts the state together from what watches, counts and runs."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

from gateway.config import Tenant
from gateway.dashboard.history import STEP, Used, quantile
from gateway.dashboard.record import Record
from gateway.dashboard.state import Brief, Condition, ReplicaState, RouteState, State, TenantState, TierState
from gateway.dashboard.watch import Watch
from gateway.metrics import ANSWERING, NO_ERROR, STORES, Metrics
from gateway.tiers import Replica, Tier

PATIENCE = 1.0  # seconds
SHOWN_REQUESTS = 40
SHOWN_TENANTS = 20
RATE_BUCKETS = 2  # of the history, for tokens per second
CONDITIONS = {
    "starting": "is being started again",
    "resting": "has failed and is left alone",
    "down": "is down",
}


class Overview:
    """Reads, changes nothing."""

    def __init__(
        self,
        *,
        watch: Watch,
        metrics: Metrics,
        tiers: Sequence[Tier],
        tenants: Callable[[], Sequence[Tenant]],
        leaving: Callable[[], bool],
    ) -> None:
        self._watch = watch
        self._metrics = metrics
        self._tiers = tiers
        self._tenants = tenants
        self._leaving = leaving
        self._started = time.time()

    def state(self) -> State:
        tiers = tuple(self._tier(tier) for tier in self._tiers)
        tenants = self._busiest()
        running = self._watch.running_by_tenant()
        requests, failures = self._requests()
        return State(
            now=time.time(),
            uptime=time.time() - self._started,
            version=version("headrace"),
            draining=self._leaving(),
            troubles=(*self._store_troubles(), *_troubles(tiers)),
            running=running.total(),
            requests=requests,
            failures=failures,
            spent=sum(self._metrics.totals("headrace_cost_total").values()),
            largest=sum(self._metrics.totals("headrace_cost_largest_tier_total").values()),
            step=STEP,
            tiers=tiers,
            routes=self._routes(),
            tenants=tenants,
            more_tenants=len(self._tenants()) - len(tenants),
            latest=tuple(_brief(record) for record in self._watch.latest(SHOWN_REQUESTS)),
        )

    async def request(self, request_id: str) -> Record | None:
        """One that is over, or just about to be, and not yet forgotten."""
        return await self._watch.settled(request_id, PATIENCE)

    def _requests(self) -> tuple[int, int]:
        ended: Counter[bool] = Counter()
        for (endpoint, _, status, code), count in self._metrics.totals("headrace_requests_total").items():
            if endpoint in ANSWERING:
                ended[status >= "500" or (status == "200" and code != NO_ERROR)] += round(count)
        return ended.total(), ended[True]

    def _routes(self) -> tuple[RouteState, ...]:
        counts = self._metrics.totals("headrace_route_decisions_total")
        return tuple(
            RouteState(tier=tier, reason=reason, count=round(count))
            for (tier, reason), count in counts.items()
            if count
        )

    def _store_troubles(self) -> tuple[str, ...]:
        up = self._metrics.totals("headrace_state_backend_up")
        return tuple(f"The store of {kind} does not answer." for kind in STORES if not up[(kind,)])

    def _tier(self, tier: Tier) -> TierState:
        history = self._watch.history
        series, first = history.series(tier.name), history.first_tokens(tier.name)
        tokens, costs = (
            self._metrics.totals("headrace_tokens_total"),
            self._metrics.totals("headrace_cost_total"),
        )

        def used(kind: str) -> int:
            return round(
                sum(n for (_, name, what), n in tokens.items() if name == tier.name and what == kind)
            )

        recent = series.tokens[-RATE_BUCKETS:]
        return TierState(
            name=tier.name,
            ready=tier.available,
            price=tier.price,
            context_length=tier.context_length,
            answers=round(self._metrics.totals("headrace_time_to_first_token_seconds_count")[(tier.name,)]),
            prompt_tokens=used("prompt"),
            cached_tokens=used("cached"),
            completion_tokens=used("completion"),
            cost=sum(money for (_, name), money in costs.items() if name == tier.name),
            tokens_per_second=sum(recent) / len(recent),
            first_p50=quantile(first, 0.5),
            first_p95=quantile(first, 0.95),
            replicas=tuple(self._replica(replica) for replica in tier.replicas),
            series=series,
        )

    def _replica(self, replica: Replica) -> ReplicaState:
        load = self._watch.loads.get(replica.name)
        restarts = self._metrics.totals("headrace_engine_restarts_total").get((replica.name,))
        used = hits = None
        if load is not None and load.blocks_total:
            used = (load.blocks_total - load.blocks_free - load.blocks_cached) / load.blocks_total
        if load is not None and load.prefix_queries:
            hits = load.prefix_hits / load.prefix_queries
        return ReplicaState(
            name=replica.name,
            model=replica.model,
            kind="remote" if restarts is None else "engine",
            condition=_condition(replica),
            in_flight=replica.backend.in_flight,
            waiting=None if load is None else load.waiting,
            kv_used=used,
            hit_share=hits,
            restarts=None if restarts is None else round(restarts),
        )

    def _busiest(self) -> tuple[TenantState, ...]:
        used, running = self._watch.history.last_minute(), self._watch.running_by_tenant()
        costs: Counter[str] = Counter()
        for (tenant, _), money in self._metrics.totals("headrace_cost_total").items():
            costs[tenant] += money  # type: ignore[assignment]  # a Counter of money
        states = [_tenant(tenant, used, running, costs) for tenant in self._tenants()]
        states.sort(key=lambda state: (state.tokens, state.requests, state.running, state.cost), reverse=True)
        return tuple(states[:SHOWN_TENANTS])


def _condition(replica: Replica) -> Condition:
    backend = replica.backend
    if backend.tripped:
        return "resting"
    if backend.available:
        return "up"
    if backend.recovering:
        return "starting"
    return "busy" if backend.in_flight else "down"


def _troubles(tiers: Sequence[TierState]) -> tuple[str, ...]:
    return tuple(
        f"{replica.name} {CONDITIONS[replica.condition]}."
        for tier in tiers
        for replica in tier.replicas
        if replica.condition in CONDITIONS
    )


def _tenant(
    tenant: Tenant, used: Mapping[str, Used], running: Mapping[str, int], costs: Mapping[str, float]
) -> TenantState:
    past, limits = used.get(tenant.name, Used()), tenant.limits
    return TenantState(
        name=tenant.name,
        requests=past.requests,
        refused=past.refused,
        tokens=past.tokens,
        running=running.get(tenant.name, 0),
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        parallel=limits.parallel,
        cost=costs.get(tenant.name, 0.0),
    )


def _brief(record: Record) -> Brief:
    return Brief(**{name: getattr(record, name) for name in Brief.__struct_fields__})

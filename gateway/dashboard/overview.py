"""Puts the state together from what watches, counts and runs, in this process and in those beside it."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

from gateway.config import Tenant
from gateway.dashboard.history import STEP, Used, quantile
from gateway.dashboard.record import Record
from gateway.dashboard.share import Share, Standing, Whole
from gateway.dashboard.siblings import ALONE, Siblings
from gateway.dashboard.state import Brief, Condition, ReplicaState, RouteState, State, TenantState, TierState
from gateway.dashboard.watch import Watch
from gateway.metrics import ANSWERING, NO_ERROR, STORES, Metrics
from gateway.tiers import Replica, Tier
from gateway.totals import Totals

PATIENCE = 1.0  # seconds
SHOWN_REQUESTS = 40
SENT_AGAIN = frozenset({"failover", "escalation"})  # reasons that are counted beside the first decision
SHOWN_TENANTS = 20
RATE_BUCKETS = 2  # of the history, for tokens per second
GONE = frozenset({"starting", "down"})  # conditions in which what an engine has said of itself holds no more
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
        siblings: Siblings = ALONE,
    ) -> None:
        self._watch = watch
        self._metrics = metrics
        self._tiers = tiers
        self._tenants = tenants
        self._leaving = leaving
        self._siblings = siblings

    def share(self) -> Share:
        """What this process knows."""
        replicas = [replica for tier in self._tiers for replica in tier.replicas]
        return self._watch.share(
            leaving=self._leaving(),
            latest=tuple(_brief(record) for record in self._watch.latest(SHOWN_REQUESTS)),
            ready={tier.name: tier.available for tier in self._tiers},
            replicas={
                replica.name: Standing(_condition(replica), replica.backend.in_flight) for replica in replicas
            },
        )

    async def state(self) -> State:
        """Of all processes of the gateway."""
        whole = Whole([self.share(), *await self._siblings.shares()])
        counted = await asyncio.to_thread(self._metrics.totals)
        tiers = tuple(self._tier(tier, whole, counted) for tier in self._tiers)
        tenants = self._busiest(whole, counted)
        requests, failures = _requests(counted)
        return State(
            now=time.time(),
            uptime=max(0.0, time.time() - whole.started),
            version=version("headrace"),
            draining=whole.leaving,
            troubles=(*_store_troubles(counted), *_troubles(tiers)),
            running=whole.running.total(),
            requests=requests,
            failures=failures,
            spent=counted.of("headrace_cost_total"),
            largest=counted.of("headrace_cost_largest_tier_total"),
            step=STEP,
            tiers=tiers,
            routes=_routes(counted),
            tenants=tenants,
            more_tenants=len(self._tenants()) - len(tenants),
            latest=whole.latest(SHOWN_REQUESTS),
        )

    async def request(self, request_id: str) -> Record | None:
        """One that is over, or just about to be, and not yet forgotten, whoever has served it."""
        return await self.own_request(request_id) or await self._siblings.find(request_id)

    async def own_request(self, request_id: str) -> Record | None:
        """As `request`, of those that this process has served."""
        return await self._watch.settled(request_id, PATIENCE)

    def _tier(self, tier: Tier, whole: Whole, counted: Totals) -> TierState:
        name = tier.name
        series, first = whole.history.series(name), whole.history.first_tokens(name)

        def used(kind: str) -> int:
            return round(counted.of("headrace_tokens_total", tier=name, kind=kind))

        recent = series.tokens[-RATE_BUCKETS:]
        replicas = tuple(_replica(replica, whole, counted) for replica in tier.replicas)
        return TierState(
            name=name,
            ready=whole.ready(name) and any(replica.condition != "resting" for replica in replicas),
            price=tier.price,
            context_length=tier.context_length,
            answers=round(counted.of("headrace_time_to_first_token_seconds_count", tier=name)),
            prompt_tokens=used("prompt"),
            cached_tokens=used("cached"),
            completion_tokens=used("completion"),
            cost=counted.of("headrace_cost_total", tier=name),
            tokens_per_second=sum(recent) / len(recent),
            first_p50=quantile(first, 0.5),
            first_p95=quantile(first, 0.95),
            replicas=replicas,
            series=series,
        )

    def _busiest(self, whole: Whole, counted: Totals) -> tuple[TenantState, ...]:
        used, costs = whole.history.last_minute(), counted.by("headrace_cost_total", "tenant")
        spent = counted.by("headrace_budget_spent", "tenant", "period")
        states = [_tenant(tenant, used, whole.running, costs, spent) for tenant in self._tenants()]
        states.sort(key=_business, reverse=True)
        return tuple(states[:SHOWN_TENANTS])


def _business(tenant: TenantState) -> tuple[float, ...]:
    return tenant.tokens, tenant.requests + tenant.refused, tenant.running, tenant.cost


def _requests(counted: Totals) -> tuple[int, int]:
    """Calls for an answer that are over, and those of them that failed."""
    ended = failed = 0
    by_end = counted.by("headrace_requests_total", "endpoint", "status", "error_code")
    for (endpoint, status, code), count in by_end.items():
        if endpoint in ANSWERING:
            ended += round(count)
            failed += round(count) if status >= "500" or (status == "200" and code != NO_ERROR) else 0
    return ended, failed


def _routes(counted: Totals) -> tuple[RouteState, ...]:
    counts = counted.by("headrace_route_decisions_total", "tier", "reason")
    return tuple(
        RouteState(tier=tier, reason=reason, count=round(count), again=reason in SENT_AGAIN)
        for (tier, reason), count in counts.items()
        if count
    )


def _store_troubles(counted: Totals) -> tuple[str, ...]:
    up = counted.by("headrace_state_backend_up", "kind")
    return tuple(f"The store of {kind} does not answer." for kind in STORES if not up[(kind,)])


def _replica(replica: Replica, whole: Whole, counted: Totals) -> ReplicaState:
    standing = whole.standing(replica.name)
    load = None if standing.condition in GONE else whole.loads.get(replica.name)
    restarts = counted.by("headrace_engine_restarts_total", "engine").get((replica.name,))
    used = hits = None
    if load is not None and load.blocks_total:
        used = (load.blocks_total - load.blocks_free - load.blocks_cached) / load.blocks_total
    if load is not None and load.prefix_queries:
        hits = load.prefix_hits / load.prefix_queries
    return ReplicaState(
        name=replica.name,
        model=replica.model,
        kind="remote" if restarts is None else "engine",
        condition=standing.condition,
        in_flight=standing.in_flight,
        waiting=None if load is None else load.waiting,
        kv_used=used,
        hit_share=hits,
        restarts=None if restarts is None else round(restarts),
        gates=() if load is None else load.gates,
    )


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
    tenant: Tenant,
    used: Mapping[str, Used],
    running: Mapping[str, int],
    costs: Mapping[tuple[str, ...], float],
    spent: Mapping[tuple[str, ...], float],
) -> TenantState:
    past, limits = used.get(tenant.name, Used()), tenant.limits
    return TenantState(
        name=tenant.name,
        requests=past.requests - past.refused,
        refused=past.refused,
        tokens=past.tokens,
        input_tokens=past.input_tokens,
        output_tokens=past.tokens - past.input_tokens,
        running=running.get(tenant.name, 0),
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        input_tokens_per_minute=limits.input_tokens_per_minute,
        output_tokens_per_minute=limits.output_tokens_per_minute,
        parallel=limits.parallel,
        spent_of_day=spent.get((tenant.name, "day"), 0.0),
        spent_of_month=spent.get((tenant.name, "month"), 0.0),
        per_day=limits.budget.per_day,
        per_month=limits.budget.per_month,
        cost=costs.get((tenant.name,), 0.0),
    )


def _brief(record: Record) -> Brief:
    return Brief(**{name: getattr(record, name) for name in Brief.__struct_fields__})

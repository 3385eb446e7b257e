"""The part of one gateway among several, and what is told of the store."""

import asyncio
from contextlib import suppress
from pathlib import Path

from gateway.config import Budget, Limits, Tenant
from gateway.limits import NOTHING, Amount
from gateway.limits_guard import GuardedLimits
from gateway.limits_memory import MemoryLimits
from gateway.limits_sqlite import SqliteLimits
from gateway.metering import Meter, look_at_budgets, share_of
from gateway.metrics import Metrics
from gateway.prices import NANO


def test_a_share_is_rounded_up_and_nobody_is_left_with_nothing() -> None:
    limits = Limits(requests_per_minute=10, tokens_per_minute=999, tokens_burst=2, parallel=1)
    share = share_of(limits, 3)
    assert share == Limits(requests_per_minute=4, tokens_per_minute=333, tokens_burst=1, parallel=1)


def test_what_is_unlimited_stays_so_and_budgets_are_not_shared_out() -> None:
    assert share_of(Limits(budget=Budget(per_day=5, on_outage="open")), 4) == Limits()
    assert share_of(Limits(parallel=7), 1) == Limits(parallel=7)


async def test_who_has_no_limits_says_nothing_of_the_store(tmp_path: Path) -> None:
    """It is not asked for them, so that an outage would seem to be over with each of their requests."""
    metrics = Metrics(["7b"], {}, ["free", "limited"])
    (tmp_path / "folder").write_text("in the way of the file")
    store = GuardedLimits(SqliteLimits(tmp_path / "folder" / "limits.sqlite"))
    meter = Meter(store, MemoryLimits(), metrics)
    free, limited = Tenant(name="free"), Tenant(name="limited", limits=Limits(parallel=2))

    async def up_after(tenant: Tenant) -> float:
        await meter.reserve(tenant, tenant.name, NOTHING)
        return metrics.totals().of("headrace_state_backend_up", kind="limits")

    assert [await up_after(tenant) for tenant in (free, limited, free)] == [1, 0, 0]
    (tmp_path / "folder").unlink()
    assert [await up_after(tenant) for tenant in (free, limited)] == [0, 1]
    await store.close()


async def test_a_call_of_which_a_part_ran_is_a_request_and_one_that_never_ran_is_none() -> None:
    store, acme = MemoryLimits(lambda: 0.0), Tenant(name="acme", limits=Limits(requests_per_minute=9))
    meter = Meter(store, MemoryLimits(), Metrics(["7b"], {}, ["acme"]))

    async def counted(*parts: Amount | None) -> float:
        before = await store.look("acme", acme.limits)
        charge = await meter.reserve(acme, f"{parts}", NOTHING, parts=len(parts))
        for used in parts:
            await meter.settle(charge, used)
        return before["requests"].remaining - (await store.look("acme", acme.limits))["requests"].remaining

    assert [await counted(*parts) for parts in ((None,), (None, None), (NOTHING,))] == [0, 0, 1]
    assert [await counted(*parts) for parts in ((None, NOTHING), (Amount(tokens=1), None))] == [1, 1]


async def test_budgets_are_looked_at_though_nobody_asks_for_anything() -> None:
    """Else nothing would be gone of one after a restart, and all of it after midnight, until the tenant comes again."""
    store, metrics, today = (
        MemoryLimits(calendar=lambda: now[0]),
        Metrics(["7b"], {}, ["acme", "free"]),
        20_000,
    )
    now = [today * 86_400.0]
    acme = Tenant(name="acme", limits=Limits(budget=Budget(per_day=2, per_month=9)))
    await store.reserve("acme", acme.limits, "elsewhere", Amount(money=NANO))
    meter = Meter(store, MemoryLimits(), metrics)

    async def spent() -> dict[str, float]:
        looking = asyncio.create_task(look_at_budgets(meter, lambda: [Tenant(name="free"), acme]))
        await asyncio.sleep(0.01)
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        told = metrics.totals().by("headrace_budget_spent", "tenant", "period")
        return {period: money for (tenant, period), money in told.items() if tenant == "acme"}

    assert await spent() == {"day": 1, "month": 1}
    now[0] += 86_400
    assert await spent() == {"day": 0, "month": 1}

"""The part of one gateway among several, and what is told of the store."""

from pathlib import Path

from gateway.config import Budget, Limits, Tenant
from gateway.limits import NOTHING
from gateway.limits_guard import GuardedLimits
from gateway.limits_memory import MemoryLimits
from gateway.limits_sqlite import SqliteLimits
from gateway.metering import Meter, share_of
from gateway.metrics import Metrics


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

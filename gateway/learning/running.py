"""Engines of our own for answers that nobody waits for: all that there is may run at once."""

import contextlib
from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from backends.backend import Backend
from gateway.config import Band, Config, Engine, Tier
from gateway.engines import Engines, engine_models
from gateway.fleet import Fleet
from gateway.metrics import Metrics
from prefixcache.affinity import Affinity


@contextlib.asynccontextmanager
async def running(config: Config, rows: int) -> AsyncIterator[dict[str, Sequence[Backend]]]:
    """The replicas of each tier, with room for so many answers at a time.

    Raises EngineStartError, BackendError, OSError, ValueError.
    """
    config = replace(config, tiers=tuple(_roomy(tier, rows) for tier in config.tiers))
    metrics = Metrics([tier.name for tier in config.tiers], engine_models(config), [])
    engines = Engines(config, metrics, lambda load: None)
    try:
        fleet = Fleet(config, engines.configs, metrics, Affinity())
        await engines.start()
        await fleet.start()
        yield {tier.name: [replica.backend for replica in tier.replicas] for tier in fleet.tiers}
        await fleet.stop()
    finally:
        await engines.stop()


def _roomy(tier: Tier, rows: int) -> Tier:
    return replace(tier, engines=tuple(_batching(engine, rows) for engine in tier.engines))


def _batching(engine: Engine, rows: int) -> Engine:
    return replace(
        engine,
        bands=(Band(rows=rows, ttft_ms=60_000),),
        tenant_share=1.0,
        session_share=1.0,
        step_budget_ms=5_000,
        step_timeout=600.0,
    )

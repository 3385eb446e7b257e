"""The composition root: everything built from the configuration, started and stopped in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from starlette.applications import Starlette

from classifier.model import Classifier
from gateway.archive import Archive
from gateway.config import Config
from gateway.dashboard.overview import Overview
from gateway.dashboard.watch import Watch
from gateway.desk import Desk
from gateway.dispatch import Dispatcher
from gateway.drain import Drain
from gateway.fleet import Fleet, engine_models
from gateway.front import build_front
from gateway.limits_memory import MemoryLimits
from gateway.metering import Meter
from gateway.metrics import Metrics, measure_lag
from gateway.observation import observer
from gateway.recall import Memory
from gateway.state import open_documents, open_limits, open_sessions
from gateway.telemetry import Traces
from gateway.tenants import Tenants, cache_salt, server_secret
from prefixcache.affinity import Affinity


def create_app(config: Config, drain: Drain) -> Starlette:
    """The gateway as an ASGI application; its lifespan runs the engines.

    Raises ValueError for a model that is not there, SecretError, OSError. Once this has returned, the lifespan must
    be run, as engines' folders are made here and removed there.
    """
    secret = server_secret(config)
    tenants = Tenants(config, secret)
    everybody = [*config.tenants, *([config.anonymous] if config.anonymous is not None else [])]
    metrics = Metrics(
        [tier.name for tier in config.tiers],
        engine_models(config),
        [tenant.name for tenant in everybody],
        shadows=list(config.shadow_policies),
        old_names=config.telemetry.vllm_old_names,
    )
    traces = Traces(config.telemetry)
    own = {tenant.name: tenant.session_ttl for tenant in everybody}

    def retention(tenant: str) -> float:
        return own.get(tenant) or config.state.session_ttl

    limits = open_limits(config.state)
    sessions, documents = open_sessions(config.state, retention), open_documents(config.state, retention)
    classifier = Classifier.load(Path(config.classifier) if config.classifier is not None else None)
    desk = Desk(config.tiers, classifier.usual, config.shadow_policies)
    desk.check(everybody)
    affinity = Affinity()
    watch = Watch(engine_models(config))
    fleet = Fleet(config, metrics, affinity, watch.load)
    overview = Overview(
        watch=watch,
        metrics=metrics,
        tiers=fleet.tiers,
        tenants=lambda: everybody,
        leaving=lambda: drain.leaving,
    )
    dispatcher = Dispatcher(
        tiers=fleet.tiers,
        aliases=config.aliases,
        server=config.server,
        meter=Meter(limits, MemoryLimits(), metrics, config.state.gateways),
        memory=Memory(sessions, metrics),
        assess=classifier.assess,
        desk=desk,
        affinity=affinity,
        salts={tenant.name: cache_salt(secret, tenant.name) for tenant in everybody},
        metrics=metrics,
        traces=traces,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(traces.close)
            stack.push_async_callback(limits.close)
            stack.push_async_callback(sessions.close)
            stack.push_async_callback(documents.close)
            stack.push_async_callback(fleet.stop)
            await fleet.start()
            await stack.enter_async_context(_running(asyncio.create_task(measure_lag(metrics))))
            yield

    def render() -> bytes:
        metrics.draining(drain.leaving)
        return metrics.render()

    return build_front(
        config,
        dispatcher,
        archive=Archive(documents, sessions, metrics),
        find_tenant=tenants.find,
        drain=drain,
        metrics=render,
        overview=overview,
        observe=observer(metrics, traces, watch),
        lifespan=lifespan,
    )


@asynccontextmanager
async def _running(task: asyncio.Task[None]) -> AsyncIterator[None]:
    """The task runs inside the block and ends with it."""
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

"""The composition root: everything built from the configuration, started and stopped in order."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
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
from gateway.front import build_admin, build_front
from gateway.limits_memory import MemoryLimits
from gateway.live import Live, Salts, everybody
from gateway.logs import set_log_level
from gateway.metering import Meter
from gateway.metrics import Metrics, measure_lag
from gateway.observation import observer
from gateway.recall import Memory
from gateway.records import open_records
from gateway.reload import Apply, Reloads
from gateway.state import open_documents, open_limits, open_sessions
from gateway.telemetry import Traces
from gateway.tenants import Tenants, server_secret
from prefixcache.affinity import Affinity


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """`admin`: the application of the operators' own port, where the configuration has one."""

    front: Starlette
    admin: Starlette | None
    reloads: Reloads


def create_app(config: Config, drain: Drain) -> Starlette:
    """The front of a gateway whose configuration stays as it is. As `create_gateway`."""
    return create_gateway(config, drain, lambda: config).front


def create_gateway(config: Config, drain: Drain, read: Callable[[], Config]) -> Gateway:
    """The gateway as ASGI applications; the lifespan of its front runs the engines.

    `read`: gets the configuration again when it is to be reloaded. Raises ValueError for a model that is not there,
    SecretError, OSError. Once this has returned, the lifespan must be run, as engines' folders are made here and
    removed there.
    """
    secret = server_secret(config)
    live = Live(config, Tenants(config, secret))
    metrics = Metrics(
        [tier.name for tier in config.tiers],
        engine_models(config),
        [tenant.name for tenant in everybody(config)],
        shadows=list(config.shadow_policies),
        old_names=config.telemetry.vllm_old_names,
    )
    traces = Traces(config.telemetry)
    records = open_records(config.telemetry, secret, metrics)
    limits = open_limits(config.state)
    sessions = open_sessions(config.state, live.retention)
    documents = open_documents(config.state, live.retention)
    classifier = Classifier.load(Path(config.classifier) if config.classifier is not None else None)
    desk = Desk(config.tiers, classifier.usual, config.shadow_policies)
    desk.check(everybody(config))
    affinity = Affinity()
    watch = Watch(engine_models(config))
    fleet = Fleet(config, metrics, affinity, watch.load)
    overview = Overview(
        watch=watch,
        metrics=metrics,
        tiers=fleet.tiers,
        tenants=lambda: everybody(live.config),
        leaving=lambda: drain.leaving,
    )
    dispatcher = Dispatcher(
        tiers=fleet.tiers,
        aliases=live.aliases,
        server=config.server,
        meter=Meter(limits, MemoryLimits(), metrics, config.state.gateways, live.limits),
        memory=Memory(sessions, metrics),
        assess=classifier.assess,
        desk=desk,
        affinity=affinity,
        salts=Salts(secret),
        metrics=metrics,
        traces=traces,
    )

    def prepare(new: Config) -> Apply:
        tenants = Tenants(new, secret)
        Desk(new.tiers, classifier.usual, new.shadow_policies).check(everybody(new))

        def apply() -> None:
            live.hold(new, tenants)
            desk.change(new.tiers)
            fleet.price(new.tiers)
            metrics.tenants([tenant.name for tenant in everybody(new)])
            set_log_level(new.telemetry.log_level)

        return apply

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(traces.close)
            if records is not None:
                stack.push_async_callback(records.close)
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

    reloads = Reloads(config, read, prepare, metrics)
    observe = observer(metrics, traces, watch, records)
    front = build_front(
        config,
        dispatcher,
        archive=Archive(documents, sessions, metrics),
        find_tenant=live.find,
        drain=drain,
        metrics=render,
        overview=overview,
        observe=observe,
        reloads=reloads,
        aliases=live.aliases,
        lifespan=lifespan,
    )
    own = config.server.admin
    admin = None
    if own is not None:
        admin = build_admin(
            config,
            own.host,
            dispatcher,
            find_tenant=live.find,
            drain=drain,
            metrics=render,
            overview=overview,
            observe=observe,
            reloads=reloads,
        )
    return Gateway(front=front, admin=admin, reloads=reloads)


@asynccontextmanager
async def _running(task: asyncio.Task[None]) -> AsyncIterator[None]:
    """The task runs inside the block and ends with it."""
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

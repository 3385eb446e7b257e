"""The composition root: everything built from the configuration, started and stopped in order."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette

from backends.wire import EngineConfig
from classifier.model import Classifier
from gateway import learned
from gateway.api.admin import Changes
from gateway.archive import Archive
from gateway.config import Config, Tenant
from gateway.dashboard.overview import Overview
from gateway.dashboard.siblings import ALONE, Siblings
from gateway.dashboard.watch import Watch
from gateway.desk import Desk
from gateway.dispatch import Dispatcher
from gateway.drain import Drain
from gateway.engines import Engines, EnginesElsewhere, engine_models
from gateway.fleet import Fleet
from gateway.front import build_admin, build_front
from gateway.limits_memory import MemoryLimits
from gateway.live import Live, Salts, everybody, shut
from gateway.logs import set_log_level
from gateway.metering import Meter, look_at_budgets
from gateway.metrics import STORES, Metrics, measure_lag
from gateway.observation import observer
from gateway.otlp_metrics import exported
from gateway.recall import Memory
from gateway.records import open_records
from gateway.reload import Apply, Reloads
from gateway.shadow import open_shadow
from gateway.state import open_stores
from gateway.telemetry import Traces
from gateway.tenants import Tenants, server_secret
from gateway.weights import open_judges
from prefixcache.affinity import Affinity

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """`admin`: the application of the operators' own port, where the configuration has one."""

    front: Starlette
    admin: Starlette | None
    reloads: Changes


@dataclass(frozen=True, kw_only=True)
class Place:
    """A gateway worker's place among the processes of its gateway.

    `engines`: those that run; `shared`: the folder in which all count, see `gateway.metrics_shared`; `changes`: of the
    configuration, made by whoever runs the workers.
    """

    engines: Sequence[EngineConfig]
    shared: Path
    siblings: Siblings
    changes: Changes


def create_app(config: Config, drain: Drain) -> Starlette:
    """The front of a gateway whose configuration stays as it is. As `create_gateway`."""
    return create_gateway(config, drain, lambda: config).front


def create_gateway(config: Config, drain: Drain, read: Callable[[], Config]) -> Gateway:
    """The gateway of one process, as ASGI applications; the lifespan of its front runs the engines.

    `read`: gets the configuration again when it is to be reloaded. Raises ValueError for a model that is not there,
    SecretError, OSError. Once this has returned, the lifespan must be run, as engines' folders are made here and
    removed there.
    """
    works = Works(config, drain)
    return works.gateway(Reloads(config, read, works.prepare, works.metrics))


class Works:
    """What lies behind the doors of one process that serves requests."""

    def __init__(self, config: Config, drain: Drain, place: Place | None = None) -> None:
        """Without a `place` it is the only one, and has the engines too."""
        self._config = config
        self._drain = drain
        self._secret = server_secret(config)
        self._alone = place is None
        self._siblings = ALONE if place is None else place.siblings
        self.live = Live(config, Tenants(config, self._secret))
        self.metrics = new_metrics(config, None if place is None else place.shared)
        self._traces = Traces(config.telemetry, self.metrics.lost)
        self._records = open_records(config.telemetry, self._secret, self.metrics)
        self._stores = open_stores(config.state, self.live.retention, self._tell_of_stores)
        self.archive = Archive(
            self._stores.documents, self._stores.sessions, self.metrics, config.state.session_characters
        )
        self._memory = Memory(self._stores.sessions, self.metrics, config.state.session_characters)
        self._classifier = Classifier.load(Path(config.classifier) if config.classifier is not None else None)
        self._desk = self._new_desk(config)
        self._judges = open_judges(config)
        self._judges.announce()
        for told in (shut(config), learned.unknown(config, self._classifier.usual)):
            if told is not None:
                logger.warning("%s", told)
        self._affinity = Affinity()
        self._watch = Watch(engine_models(config))
        self._engines = (
            Engines(config, self.metrics, self._watch.load)
            if place is None
            else EnginesElsewhere(place.engines)
        )
        self._fleet = self._new_fleet(config)
        self._shadow = open_shadow(config, self._fleet.tiers, self._secret, self.metrics)
        self.observe = observer(self.metrics, self._traces, self._watch, self._records)
        self.overview = Overview(
            watch=self._watch,
            metrics=self.metrics,
            tiers=self._fleet.tiers,
            tenants=lambda: everybody(self.live.config),
            leaving=lambda: drain.leaving,
            siblings=self._siblings,
        )
        gateways = config.state.gateways * config.server.workers
        self._meter = Meter(self._stores.limits, MemoryLimits(), self.metrics, gateways, self.live.limits)
        self.dispatcher = self._new_dispatcher(config)

    def gateway(self, changes: Changes) -> Gateway:
        """`changes`: who changes the configuration when an operator asks for it."""
        front = build_front(
            self._config,
            self.dispatcher,
            archive=self.archive,
            find_tenant=self._find_tenant,
            drain=self._drain,
            metrics=self.render,
            overview=self.overview,
            observe=self.observe,
            reloads=changes,
            aliases=self.live.aliases,
            anonymous=lambda: self.live.config.anonymous,
            lifespan=self.lifespan,
        )
        own = self._config.server.admin
        admin = None
        if own is not None:
            admin = build_admin(
                self._config,
                own.host,
                self.dispatcher,
                find_tenant=self.live.find,
                drain=self._drain,
                metrics=self.render,
                overview=self.overview,
                observe=self.observe,
                reloads=changes,
            )
        return Gateway(front=front, admin=admin, reloads=changes)

    def _tell_of_stores(self, answer: bool) -> None:
        """All of them are in one server."""
        for kind in STORES:
            self.metrics.state_backend(kind, up=answer)

    def _find_tenant(self, key: str | None) -> Tenant:
        """Raises ApiError 401."""
        with self._traces.span("headrace.auth") as span:
            tenant = self.live.find(key)
            span.set_attribute("headrace.tenant", tenant.name)
            return tenant

    def _new_fleet(self, config: Config) -> Fleet:
        try:
            return Fleet(config, self._engines.configs, self.metrics, self._affinity)
        except BaseException:
            self._engines.discard()
            raise

    def _new_desk(self, config: Config) -> Desk:
        """Raises ValueError for a policy that cannot be followed."""
        desk = Desk(config.tiers, self._classifier.usual, config.shadow_policies)
        desk.check(everybody(config))
        return desk

    def _new_dispatcher(self, config: Config) -> Dispatcher:
        return Dispatcher(
            tiers=self._fleet.tiers,
            aliases=self.live.aliases,
            server=config.server,
            meter=self._meter,
            memory=self._memory,
            assess=self._classifier.assess,
            desk=self._desk,
            affinity=self._affinity,
            salts=Salts(self._secret),
            judges=self._judges,
            billing=config.billing,
            shadow=self._shadow,
            metrics=self.metrics,
            traces=self._traces,
        )

    async def prepare(self, new: Config) -> Apply:
        """See `gateway.reload.Prepare`."""
        tenants = Tenants(new, self._secret)
        self._new_desk(new)
        change_servers = await asyncio.to_thread(self._fleet.prepare, new.tiers)

        async def apply() -> None:
            self.live.hold(new, tenants)
            self._desk.change(new.tiers)
            self._judges.change(new.tiers)
            change_servers()
            self.metrics.tenants([tenant.name for tenant in everybody(new)])
            set_log_level(new.telemetry.log_level)

        return apply

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._traces.close)
            if self._records is not None:
                stack.push_async_callback(self._records.close)
            stack.push_async_callback(self._stores.close)
            stack.push_async_callback(self.archive.close)
            stack.push_async_callback(self._memory.close)
            self._stores.greet()
            stack.push_async_callback(self._engines.stop)
            await self._engines.start()
            stack.push_async_callback(self._fleet.stop)
            await self._fleet.start()
            await stack.enter_async_context(_running(asyncio.create_task(measure_lag(self.metrics))))
            looking = look_at_budgets(self._meter, lambda: everybody(self.live.config))
            await stack.enter_async_context(_running(asyncio.create_task(looking)))
            if self._shadow is not None:
                await stack.enter_async_context(_running(asyncio.create_task(self._shadow.run())))
            if self._alone:
                await stack.enter_async_context(exported(self._config.telemetry, self.metrics))
            yield

    async def render(self) -> bytes:
        """What `/metrics` shows now, of all processes of the gateway."""
        await self._siblings.refresh()
        self.refresh()
        return await asyncio.to_thread(self.metrics.render)

    def refresh(self) -> None:
        """Tell the metrics how this process is now."""
        self.metrics.draining(self._drain.leaving)
        self.metrics.refresh()
        self._engines.refresh()


def new_metrics(config: Config, shared: Path | None) -> Metrics:
    """`shared`: see `gateway.metrics.Metrics`."""
    return Metrics(
        [tier.name for tier in config.tiers],
        engine_models(config),
        [tenant.name for tenant in everybody(config)],
        shadows=list(config.shadow_policies),
        old_names=config.telemetry.vllm_old_names,
        shared=shared,
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

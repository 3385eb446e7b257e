"""The engines of our own that a configuration names: their processes, and what they say of themselves."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from backends.catalogue import resolve
from backends.runtime import RuntimeFolder
from backends.supervisor import Supervisor
from backends.wire import Band, EngineConfig, Load, Speculation
from gateway import quality
from gateway.config import Config, Engine
from gateway.metrics import Metrics
from gateway.strictyaml import dotted

BLOCK_SIZE = 16


class Engines:
    """`start` brings all of them up side by side, `stop` leaves nothing behind. One process of a gateway has them."""

    def __init__(self, config: Config, metrics: Metrics, on_load: Callable[[Load], None]) -> None:
        """`on_load` is told what engines say of themselves. Raises ValueError naming a model that is not there."""
        self._metrics = metrics
        self._on_load = on_load
        self._folder = RuntimeFolder()  # sockets, vocabularies, the core lease
        try:
            self.configs = engine_configs(config, self._folder.path)
        except BaseException:
            self._folder.remove()
            raise
        self._supervisor = Supervisor(self.configs, on_load=self._hear)
        for engine in self.configs:
            metrics.describe(engine)

    async def start(self) -> None:
        """Raises EngineStartError with the engine's last words."""
        try:
            await self._supervisor.start()
        except BaseException:
            self.discard()
            raise

    async def stop(self) -> None:
        """Idempotent."""
        await self._supervisor.stop()
        self.discard()

    def discard(self) -> None:
        """For engines that never ran: their folder goes. Idempotent."""
        self._folder.remove()

    def refresh(self) -> None:
        """What an engine that is not there cannot say itself: that nothing runs in it, and how often it was started."""
        for engine in self.configs:
            self._metrics.restarts(engine.name, self._supervisor.restarts[engine.name])
            if engine.name not in self._supervisor.answering:
                self._metrics.idle(engine.name)

    def _hear(self, load: Load) -> None:
        self._metrics.load(load)
        self._metrics.restarts(load.engine, self._supervisor.restarts[load.engine])
        self._on_load(load)


class EnginesElsewhere:
    """Those that another process of the gateway has. They run before this one is started and after it has ended."""

    def __init__(self, configs: Sequence[EngineConfig]) -> None:
        self.configs = tuple(configs)

    async def start(self) -> None:
        """They run."""

    async def stop(self) -> None:
        """They run on."""

    def discard(self) -> None:
        """Nothing of them is kept here."""

    def refresh(self) -> None:
        """Their own process tells how they are."""


def engine_configs(config: Config, folder: Path) -> tuple[EngineConfig, ...]:
    """All of them, tier by tier, with their files in `folder`. Raises ValueError naming a model that is not there, or
    that may not run because of what it lost."""
    refused = [f"{dotted(place)}: {reason}" for place, reason in quality.faults(config)]
    if refused:
        raise ValueError("\n".join(refused))
    engines = [
        (f"{tier.name}/{number}", engine)
        for tier in config.tiers
        for number, engine in enumerate(tier.engines)
    ]
    return tuple(
        engine_config(name, engine, resolve(engine.model), f"{folder}/{number}")
        for number, (name, engine) in enumerate(engines)
    )


def engine_config(name: str, engine: Engine, model: Path, runtime: str) -> EngineConfig:
    """What an engine is started with. `runtime`: what its own files begin with; the folder is its neighbours' too."""
    same = {
        field: getattr(engine, field)
        for field in EngineConfig.__struct_fields__
        if field in Engine.__struct_fields__ and field not in ("model", "bands", "cores", "speculation")
    } | {"quantization": engine.weights, "dtype": engine.computes}
    return EngineConfig(
        name=name,
        model=str(model),
        socket=f"{runtime}.socket",
        vocabulary=f"{runtime}.vocabulary",
        block_size=BLOCK_SIZE,
        kv_blocks=engine.kv_tokens // BLOCK_SIZE,
        bands=tuple(Band(below=band.below, rows=band.rows, ttft_ms=band.ttft_ms) for band in engine.bands),
        speculation=speculation(engine),
        cores=engine.cores or len(os.sched_getaffinity(0)),
        lease=str(Path(runtime).parent / "cores.lease"),
        **same,
    )


def speculation(engine: Engine) -> Speculation:
    """How an engine drafts. Raises ValueError naming a model that is not there."""
    asked = msgspec.convert(engine.speculation, Speculation, from_attributes=True)
    return asked if asked.draft is None else msgspec.structs.replace(asked, draft=str(resolve(asked.draft)))


def engine_models(config: Config) -> dict[str, str]:
    """The model of each engine replica, by the name that the fleet gives it."""
    return {
        f"{tier.name}/{number}": engine.model
        for tier in config.tiers
        for number, engine in enumerate(tier.engines)
    }

"""The tiers of a configuration, brought to life: engine processes, remote servers, and what they report."""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from backends.backend import Backend
from backends.catalogue import resolve
from backends.local import LocalBackend
from backends.remote import RemoteBackend
from backends.runtime import RuntimeFolder
from backends.supervisor import Supervisor
from backends.tokenizer import Tokenizer
from backends.wire import Band, EngineConfig, Event, Evicted, Load, Snapshot, Stored
from gateway.config import Config, Engine, Remote
from gateway.config import Tier as TierConfig
from gateway.metrics import Metrics
from gateway.tiers import Replica, Tier
from prefixcache.affinity import Affinity

BLOCK_SIZE = 16


class Fleet:
    """Every replica of every tier. `start` brings all of them up side by side, `stop` leaves nothing behind."""

    def __init__(
        self, config: Config, metrics: Metrics, affinity: Affinity, on_load: Callable[[Load], None]
    ) -> None:
        """`on_load` is told what engines say of themselves. Raises ValueError naming a model that is not there."""
        self._metrics = metrics
        self._on_load = on_load
        self._affinity = affinity
        self._folder = RuntimeFolder()  # sockets, vocabularies, the core lease
        self._tokenizers: dict[Path, Tokenizer] = {}
        self._engines: list[EngineConfig] = []
        try:
            self.tiers = tuple(self._tier(tier) for tier in config.tiers)
        except BaseException:
            self._folder.remove()
            raise
        self._supervisor = Supervisor(self._engines)
        for backend in self.backends:
            metrics.watch(backend)
        for engine in self._engines:
            metrics.describe(engine)

    @property
    def backends(self) -> tuple[Backend, ...]:
        return tuple(replica.backend for tier in self.tiers for replica in tier.replicas)

    async def start(self) -> None:
        """Raises EngineStartError with the engine's last words, Unavailable."""
        try:
            await self._supervisor.start()
            await asyncio.gather(*(backend.start() for backend in self.backends))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Idempotent."""
        await asyncio.gather(*(backend.close() for backend in self.backends))
        await self._supervisor.stop()
        self._folder.remove()

    def price(self, tiers: Sequence[TierConfig]) -> None:
        """The prices of these, which are the same tiers otherwise, from here on."""
        for mine, tier in zip(self.tiers, tiers, strict=True):
            mine.price = tier.price

    def _tier(self, tier: TierConfig) -> Tier:
        engines = [self._engine(f"{tier.name}/{n}", engine) for n, engine in enumerate(tier.engines)]
        remotes = [
            self._remote(f"{tier.name}/{n}", remote) for n, remote in enumerate(tier.remotes, len(engines))
        ]
        return Tier(tier.name, (*engines, *remotes), tier.price)

    def _engine(self, name: str, engine: Engine) -> Replica:
        folder = resolve(engine.model)
        config = engine_config(name, engine, folder, f"{self._folder.path}/{len(self._engines)}")
        self._engines.append(config)
        backend = LocalBackend(config, self._tokenizer(folder), context_length(folder, engine), self._event)
        room = min(engine.max_sequences, engine.interactive_sequences)
        return Replica(backend, engine.model, BLOCK_SIZE, room)

    def _remote(self, name: str, remote: Remote) -> Replica:
        key = os.environ.get(remote.api_key_env) if remote.api_key_env is not None else None
        if remote.api_key_env is not None and not key:
            raise ValueError(f"tier {name}: the environment variable {remote.api_key_env} is not set")
        tokenizer = self._tokenizer(Path(remote.tokenizer)) if remote.tokenizer is not None else None
        backend = RemoteBackend(
            name=name,
            url=remote.url,
            model=remote.model,
            kind=remote.kind,
            api_key=key,
            tokenizer=tokenizer,
            context_length=remote.context_length,
            connect_timeout=remote.connect_timeout,
            read_timeout=remote.read_timeout,
            max_in_flight=remote.max_in_flight,
        )
        return Replica(backend, remote.model, room=remote.max_in_flight)

    def _tokenizer(self, folder: Path) -> Tokenizer:
        if folder not in self._tokenizers:
            self._tokenizers[folder] = Tokenizer(folder)
        return self._tokenizers[folder]

    def _event(self, event: Event) -> None:
        match event:
            case Snapshot():
                self._affinity.snapshot(event.engine, event.sequence, event.keys)
            case Stored():
                self._affinity.stored(event.engine, event.sequence, event.keys)
            case Evicted():
                self._affinity.evicted(event.engine, event.sequence, event.keys)
            case Load():
                self._metrics.load(event)
                self._on_load(event)
                self._metrics.restarts(event.engine, self._supervisor.restarts[event.engine])


def engine_config(name: str, engine: Engine, model: Path, runtime: str) -> EngineConfig:
    """What an engine is started with. `runtime`: what its own files begin with; the folder is its neighbours' too."""
    same = {
        field: getattr(engine, field)
        for field in EngineConfig.__struct_fields__
        if field in Engine.__struct_fields__ and field not in ("model", "bands", "cores")
    }
    return EngineConfig(
        name=name,
        model=str(model),
        address=f"ipc://{runtime}.work",
        events=f"ipc://{runtime}.events",
        vocabulary=f"{runtime}.vocabulary",
        block_size=BLOCK_SIZE,
        kv_blocks=engine.kv_tokens // BLOCK_SIZE,
        bands=tuple(Band(below=band.below, rows=band.rows, ttft_ms=band.ttft_ms) for band in engine.bands),
        cores=engine.cores or os.cpu_count() or 1,
        lease=str(Path(runtime).parent / "cores.lease"),
        **same,
    )


def engine_models(config: Config) -> dict[str, str]:
    """The model of each engine replica, by the name that the fleet gives it."""
    return {
        f"{tier.name}/{number}": engine.model
        for tier in config.tiers
        for number, engine in enumerate(tier.engines)
    }


def context_length(folder: Path, engine: Engine) -> int:
    """Tokens that the model was made for, the operator allows, and the KV cache holds: the least of these."""
    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    bounds = (described["max_position_embeddings"], engine.max_model_len, engine.kv_tokens)
    return min(bound for bound in bounds if bound is not None)

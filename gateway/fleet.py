"""The tiers of a configuration, brought to life: how one process reaches the engines and the remote servers."""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from backends.backend import Backend
from backends.local import LocalBackend
from backends.remote import RemoteBackend
from backends.tokenizer import Tokenizer
from backends.wire import EngineConfig, Event, Evicted, Snapshot, Stored
from gateway.config import Config, Engine, Remote
from gateway.config import Tier as TierConfig
from gateway.metrics import Metrics
from gateway.tiers import Replica, Tier
from prefixcache.affinity import Affinity


class Fleet:
    """Every replica of every tier. Gateway workers have one each, on the same engines."""

    def __init__(
        self, config: Config, engines: Sequence[EngineConfig], metrics: Metrics, affinity: Affinity
    ) -> None:
        """`engines`: what the engines of `config` are started with, by whoever does that.

        Raises ValueError naming a key that is not there.
        """
        self._affinity = affinity
        self._engines = {engine.name: engine for engine in engines}
        self._workers = config.server.workers
        self._tokenizers: dict[Path, Tokenizer] = {}
        self.tiers = tuple(self._tier(tier) for tier in config.tiers)
        for backend in self.backends:
            metrics.watch(backend)

    @property
    def backends(self) -> tuple[Backend, ...]:
        return tuple(replica.backend for tier in self.tiers for replica in tier.replicas)

    async def start(self) -> None:
        """Connect to engines that run. Raises Unavailable."""
        try:
            await asyncio.gather(*(backend.start() for backend in self.backends))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Idempotent."""
        await asyncio.gather(*(backend.close() for backend in self.backends))

    def prepare(self, tiers: Sequence[TierConfig]) -> Callable[[], None]:
        """What takes over what may change of these: prices, and keys and patience of remote servers.

        Raises ValueError naming a key that is not there.
        """
        changes = [
            (backend, key_of(backend.name, remote), remote)
            for mine, tier in zip(self.tiers, tiers, strict=True)
            for backend, remote in zip(_servers(mine), tier.remotes, strict=True)
        ]

        def apply() -> None:
            for mine, tier in zip(self.tiers, tiers, strict=True):
                mine.price = tier.price
            for backend, key, remote in changes:
                backend.change(key, remote.connect_timeout, remote.read_timeout)

        return apply

    def _tier(self, tier: TierConfig) -> Tier:
        engines = [self._engine(f"{tier.name}/{n}", engine) for n, engine in enumerate(tier.engines)]
        remotes = [
            self._remote(f"{tier.name}/{n}", remote) for n, remote in enumerate(tier.remotes, len(engines))
        ]
        return Tier(tier.name, (*engines, *remotes), tier.price)

    def _engine(self, name: str, engine: Engine) -> Replica:
        config = self._engines[name]
        folder = Path(config.model)
        backend = LocalBackend(config, self._tokenizer(folder), context_length(folder, engine), self._event)
        room = min(engine.max_sequences, engine.interactive_sequences)
        return Replica(backend, engine.model, config.block_size, self._part(room))

    def _remote(self, name: str, remote: Remote) -> Replica:
        tokenizer = self._tokenizer(Path(remote.tokenizer)) if remote.tokenizer is not None else None
        most = self._part(remote.max_in_flight)
        backend = RemoteBackend(
            name=name,
            url=remote.url,
            model=remote.model,
            kind=remote.kind,
            api_key=key_of(name, remote),
            tokenizer=tokenizer,
            context_length=remote.context_length,
            connect_timeout=remote.connect_timeout,
            read_timeout=remote.read_timeout,
            max_in_flight=most,
        )
        return Replica(backend, remote.model, room=most)

    def _part(self, whole: int) -> int:
        """This worker's part of what all workers of the gateway share."""
        return max(1, whole // self._workers)

    def _tokenizer(self, folder: Path) -> Tokenizer:
        if folder not in self._tokenizers:
            self._tokenizers[folder] = Tokenizer(folder)
        return self._tokenizers[folder]

    def _event(self, event: Event) -> None:
        match event:
            case Snapshot():
                self._affinity.snapshot(event.engine, event.keys)
            case Stored():
                self._affinity.stored(event.engine, event.keys)
            case Evicted():
                self._affinity.evicted(event.engine, event.keys)


def _servers(tier: Tier) -> list[RemoteBackend]:
    return [replica.backend for replica in tier.replicas if isinstance(replica.backend, RemoteBackend)]


def key_of(name: str, remote: Remote) -> str | None:
    """The key for a server, None where it wants none. Raises ValueError naming a variable or a file without one."""
    if remote.api_key_env is not None:
        key, where = os.environ.get(remote.api_key_env, ""), f"the environment variable {remote.api_key_env}"
    elif remote.api_key_file is not None:
        key, where = _read_key(Path(remote.api_key_file)), f"the file {Path(remote.api_key_file).name}"
    else:
        return None
    if not (key and key.isascii() and key.isprintable()):
        raise ValueError(f"tier {name}: {where} holds no key")
    return key


def _read_key(path: Path) -> str:
    """Empty for what cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def context_length(folder: Path, engine: Engine) -> int:
    """Tokens that the model was made for, the operator allows, and the KV cache holds: the least of these."""
    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    bounds = (described["max_position_embeddings"], engine.max_model_len, engine.kv_tokens)
    return min(bound for bound in bounds if bound is not None)

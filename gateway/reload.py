"""Changing the configuration while requests run: checked strictly, swapped in one step, undone by `rollback`.

Tenants, the anonymous one too, their keys and limits, aliases, prices, how answers are judged, remote servers' keys and
timeouts, the level of the log and how long sessions are kept can change; running requests, counts and sessions stay as
they are. All else needs a restart and is refused by name.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from gateway.config import Config
from gateway.live import shut, unadministered
from gateway.metrics import Metrics
from gateway.strictyaml import Path, dotted

logger = logging.getLogger(__name__)

REMOTE_FIELDS = frozenset({"api_key_env", "api_key_file", "connect_timeout", "read_timeout"})

Apply = Callable[[], Awaitable[None]]
"""Makes a checked configuration the one that holds. Does not raise."""

Prepare = Callable[[Config], Awaitable[Apply]]
"""Checks all that can be checked before. Raises ValueError."""


class RestartNeeded(ValueError):
    """The configuration is in order, but what `fields` name cannot change in a running gateway."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        super().__init__(f"needs a restart: {', '.join(fields)} changed")
        self.fields = fields


class NoPrevious(ValueError):
    """There is nothing to go back to."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Which configuration holds. `digest`: the same for gateways that hold the same; `since`: Unix seconds.

    `warnings`: who is shut out since the last change, though somebody got in before it.
    """

    number: int
    digest: str
    since: float
    rollback: bool  # whether there is a previous one
    warnings: tuple[str, ...] = ()


class Reloads:
    """One change at a time. What fails leaves everything as it was."""

    def __init__(
        self, config: Config, read: Callable[[], Config], prepare: Prepare, metrics: Metrics
    ) -> None:
        """`read` gets the configuration from where it came from; it may block."""
        self._config = config
        self._previous: Config | None = None
        self._read = read
        self._prepare = prepare
        self._metrics = metrics
        self._warnings: tuple[str, ...] = ()
        self._number = 1
        self._since = time.time()
        self._changing = asyncio.Lock()
        self._hangups: set[asyncio.Task[None]] = set()

    @property
    def config(self) -> Config:
        """The one that holds."""
        return self._config

    @property
    def version(self) -> Version:
        encoded = msgspec.json.encode(self._config)
        return Version(
            number=self._number,
            digest=hashlib.sha256(encoded).hexdigest()[:16],
            since=self._since,
            rollback=self._previous is not None,
            warnings=self._warnings,
        )

    async def current(self) -> Version:
        return self.version

    async def reload(self) -> Version:
        """Raises ConfigError, RestartNeeded, ValueError."""
        async with self._changing:
            try:
                await self._change(await asyncio.to_thread(self._read))
            except ValueError as error:
                self._failed(error)
                raise
            return self.version

    async def rollback(self) -> Version:
        """Back to the configuration before the last change; a second one is back again. Raises NoPrevious."""
        async with self._changing:
            if self._previous is None:
                raise NoPrevious("there is no previous configuration")
            await self._change(self._previous)
            return self.version

    def hang_up(self) -> None:
        """For SIGHUP: reload; the log tells how that went."""
        task = asyncio.ensure_future(self._hang_up())
        self._hangups.add(task)
        task.add_done_callback(self._hangups.discard)

    async def _hang_up(self) -> None:
        try:
            await self.reload()
        except ValueError:
            logger.warning("the previous configuration still holds")

    async def _change(self, new: Config) -> None:
        fields = tuple(dotted(path) for path in differences(self._config, new) if not _changeable(path))
        if fields:
            raise RestartNeeded(fields)
        apply = await self._prepare(new)
        self._previous, self._config = self._config, new
        self._warnings = tuple(_shut_out(self._previous, new))
        await apply()
        self._number += 1
        self._since = time.time()
        self._metrics.reloaded(self._number, success=True)
        logger.info("configuration %d holds, %s", self._number, self.version.digest)
        for warning in self._warnings:
            logger.warning("%s", warning)

    def _failed(self, error: ValueError) -> None:
        self._metrics.reloaded(self._number, success=False)
        logger.error("the configuration is not taken: %s", error)


def _shut_out(before: Config, now: Config) -> Iterator[str]:
    for told in (shut, unadministered):
        if (warning := told(now)) is not None and told(before) is None:
            yield warning


def differences(old: object, new: object, path: Path = ()) -> Iterator[Path]:
    """The least parts that differ; a list whose length differs is one part."""
    if isinstance(old, msgspec.Struct) and type(old) is type(new):
        for name in old.__struct_fields__:
            yield from differences(getattr(old, name), getattr(new, name), (*path, name))
    elif isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, after, (*path, index))
    elif old != new:
        yield path


def _changeable(path: Path) -> bool:
    match path:
        case ("tenants" | "anonymous" | "aliases", *_):
            return True
        case ("tiers", int(), "remotes", int(), field):
            return field in REMOTE_FIELDS
        case ("tiers", int(), "price" | "cascade", *_):
            return True
        case ("telemetry", "log_level") | ("state", "session_ttl"):
            return True
    return False

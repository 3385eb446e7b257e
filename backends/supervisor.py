"""Engine processes: started together, watched, started again when they die, stopped without a trace."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from backends.engine_log import EngineLog
from backends.runtime import RuntimeFolder
from backends.tokenizer import Tokenizer, same_vocabulary, write_vocabulary
from backends.watchdog import Watchdog
from backends.wire import EngineConfig, Load, ranks_path, socket_path

READY_TIMEOUT = 600.0  # seconds that an engine has to load its model: disks may be slow and machines busy
STOP_TIMEOUT = 2.0  # seconds from SIGTERM to SIGKILL
FIRST_DELAY, LAST_DELAY = 0.2, 10.0  # seconds before a dead engine is started again, doubling
LOG_TIMEOUT = 0.5  # seconds to read what a dead engine has left in its pipe
STEADY = 60.0  # seconds of life after which the delay is the first one again, for one that did not hang
TAIL = 20  # lines of an engine's last words that go into an error
# Weights on huge pages: a tenth off the matrix products where the kernel leaves the choice to programs (madvise).
# glibc and torch read these when a process starts, so they cannot be set from inside.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}
MAX_LINE = 64 * 1024  # bytes

_log = logging.getLogger(__name__)


class EngineStartError(RuntimeError):
    """An engine did not come up. The message holds the reason and the last lines of its log, for the operator."""


class Supervisor:
    """The engines of one host. Use it as an asynchronous context manager, or call `start` and `stop`.

    Engines run in sessions of their own, so that Ctrl-C in a terminal reaches only this process, and die with it,
    however it ends. What they log is logged here behind their name.
    """

    def __init__(
        self,
        configs: Sequence[EngineConfig],
        *,
        command: Sequence[str] = (sys.executable, "-m", "backends.engine"),
        ready_timeout: float = READY_TIMEOUT,
        on_load: Callable[[Load], None] | None = None,
    ) -> None:
        """`command` is followed by an engine's config file and `--parent PID`. `on_load` is told what engines say of
        themselves. In seconds, for each life: an engine that does not answer `ready_timeout` after its start, or takes
        longer than its `step_timeout` for a step, is killed; if it was up once, it is started again.

        Raises ValueError where two engines share a name or a socket, or the path of a socket cannot be one.
        """
        for field in ("name", "socket"):
            _check_unique(field, [getattr(config, field) for config in configs])
        self._engines = [
            _Engine(config, command, partial(Watchdog, config, ready_timeout, on_load)) for config in configs
        ]
        self._folder: RuntimeFolder | None = None
        self._vocabularies: set[Path] = set()

    @property
    def restarts(self) -> Mapping[str, int]:
        """By engine: how often it was started again."""
        return {engine.config.name: engine.restarts for engine in self._engines}

    @property
    def pids(self) -> Mapping[str, int]:
        """By engine: its process, for those that run."""
        return {engine.config.name: engine.pid for engine in self._engines if engine.pid is not None}

    @property
    def answering(self) -> frozenset[str]:
        """The engines that have come up and are not known to have died since."""
        return frozenset(engine.config.name for engine in self._engines if engine.answers)

    async def start(self) -> None:
        """Returns when every engine answers. Raises EngineStartError after stopping all of them again."""
        try:
            self._folder = RuntimeFolder()
            await self._write_vocabularies()
            await self._check_drafts()
            async with asyncio.TaskGroup() as group:
                for number, engine in enumerate(self._engines):
                    group.create_task(engine.start(self._folder.path / f"{number}.json"))
        except BaseExceptionGroup as errors:
            await self.stop()
            raise errors.exceptions[0] from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL for those that stay. Leaves no process and no file. Idempotent."""
        await asyncio.gather(*(engine.stop() for engine in self._engines))
        while self._vocabularies:
            self._vocabularies.pop().unlink(missing_ok=True)
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _check_drafts(self) -> None:
        """Raises EngineStartError where a model drafts in tokens that mean something else."""
        for config in (engine.config for engine in self._engines):
            try:
                await asyncio.to_thread(_check_draft, config)
            except (OSError, ValueError) as error:
                raise EngineStartError(f"engine {config.name}: speculation.draft: {error}") from error

    async def _write_vocabularies(self) -> None:
        """Engines know tokens as bytes only. A file that is there already is taken as it is."""
        made: dict[str, Path] = {}  # by model; the second engine with it gets a copy
        for config in (engine.config for engine in self._engines):
            path = Path(config.vocabulary)
            if path.exists():
                continue
            self._vocabularies.add(path)
            try:
                if config.model in made:
                    shutil.copyfile(made[config.model], path)
                else:
                    await asyncio.to_thread(_write_vocabulary, Path(config.model), path)
            except (OSError, ValueError) as error:
                raise EngineStartError(f"engine {config.name}: no vocabulary: {error}") from error
            made[config.model] = path


@dataclass(frozen=True, slots=True)
class _Death:
    how: str  # the rest of a sentence
    steady: bool  # it had lived well


class _Engine:
    """One engine's process, through all its lives."""

    def __init__(
        self, config: EngineConfig, command: Sequence[str], watchdog: Callable[[], Watchdog]
    ) -> None:
        """`watchdog` makes one for each life."""
        self.config = config
        self.restarts = 0
        self._command = command
        self._watchdog = watchdog
        self._watching: Watchdog | None = None  # over the present life
        self._files = [socket_path(config.socket), ranks_path(config.socket)]
        self._file = Path()
        self._process: asyncio.subprocess.Process | None = None
        self._born = 0.0  # monotonic
        self._reader: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._log = EngineLog(config.name)

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    @property
    def answers(self) -> bool:
        return self._watching is not None and self._watching.ready.is_set()

    async def start(self, file: Path) -> None:
        """Returns when it answers. Raises EngineStartError when it ends first or does not answer in time."""
        self._file = file
        file.write_bytes(msgspec.json.encode(self.config))
        process = await self._spawn()
        watchdog = self._watchdog()
        ended = asyncio.create_task(self._until_dead(process, watchdog))
        ready = asyncio.create_task(watchdog.ready.wait())
        try:
            await asyncio.wait((ended, ready), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise EngineStartError(await self._last_words(ended.result().how))
        except BaseException:
            await _cancel(ended)
            raise
        finally:
            await _cancel(ready)
        self._keeper = asyncio.create_task(self._keep(ended), name=f"keeper of {self.config.name}")

    async def stop(self) -> None:
        await _cancel(self._keeper)
        if self._process is not None:
            await _end(self._process)
        await self._read_out()
        for path in self._files:
            path.unlink(missing_ok=True)

    async def _keep(self, life: asyncio.Task[_Death]) -> None:
        """Start it again whenever it dies."""
        delay = FIRST_DELAY
        try:
            while True:
                death = await life
                delay = FIRST_DELAY if death.steady else delay
                _log.error("engine %s %s; started again in %.1f s", self.config.name, death.how, delay)
                await asyncio.sleep(delay)
                delay = min(2 * delay, LAST_DELAY)
                self.restarts += 1
                life = asyncio.create_task(self._live())
        finally:
            await _cancel(life)

    async def _live(self) -> _Death:
        try:
            process = await self._spawn()
        except OSError as error:
            return _Death(f"cannot be started: {error}", steady=False)
        return await self._until_dead(process, self._watchdog())

    async def _until_dead(self, process: asyncio.subprocess.Process, watchdog: Watchdog) -> _Death:
        """Wait for the end of this life; make it, where the watchdog finds that it is none."""
        ended = asyncio.create_task(process.wait())
        watched = asyncio.create_task(watchdog.run())
        self._watching = watchdog
        try:
            await asyncio.wait((ended, watched), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                process.kill()
                await ended
                return _Death(watched.result(), steady=False)
            lived = time.monotonic() - self._born
            when = f"after {lived:.1f} s" if watchdog.ready.is_set() else "before it answered"
            return _Death(f"ended with {_status(ended.result())} {when}", steady=lived >= STEADY)
        finally:
            self._watching = None
            await _cancel(ended, watched)

    async def _spawn(self) -> asyncio.subprocess.Process:
        await self._read_out()
        self._process = None
        self._born = time.monotonic()
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            str(self._file),
            "--parent",
            str(os.getpid()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | HUGE_PAGES,
        )
        assert self._process.stdout is not None
        self._reader = asyncio.create_task(self._read(self._process.stdout))
        return self._process

    async def _read(self, stream: asyncio.StreamReader) -> None:
        """Pass the log on, line by line; a line without an end is cut."""
        rest = b""
        while chunk := await stream.read(MAX_LINE):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._tell(line)
        if rest:
            self._tell(rest)

    def _tell(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        self._tail.append(text)
        self._log.add(text)

    async def _read_out(self) -> None:
        """Wait for the rest of a dead process's log; not long, for a child of its own may keep the pipe open."""
        if self._reader is not None:
            await asyncio.wait((self._reader,), timeout=LOG_TIMEOUT)
            await _cancel(self._reader)
            self._reader = None

    async def _last_words(self, what: str) -> str:
        await self._read_out()
        reason = next((line for line in reversed(self._tail) if line.strip()), "it said nothing")
        return "\n  ".join([f"engine {self.config.name} {what}: {reason}", *self._tail])


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask it to go, then make it."""
    for send in (process.terminate, process.kill):
        with contextlib.suppress(ProcessLookupError, TimeoutError):
            send()
            async with asyncio.timeout(STOP_TIMEOUT):
                await process.wait()
                return
    await process.wait()


async def _cancel(*tasks: asyncio.Task[Any] | None) -> None:
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def _write_vocabulary(model: Path, path: Path) -> None:
    write_vocabulary(Tokenizer(model), path)


def _check_draft(config: EngineConfig) -> None:
    """Raises ValueError for a drafting model that means something else by the same ids, OSError without any."""
    draft = config.speculation.draft
    if draft is None or draft == config.model:
        return
    if not same_vocabulary(Path(config.model), Path(draft)):
        raise ValueError(f"{draft} has another vocabulary than {config.model}")


def _check_unique(field: str, values: Sequence[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"two engines have the {field} {value!r}")


def _status(code: int) -> str:
    return f"exit status {code}" if code >= 0 else signal.Signals(-code).name

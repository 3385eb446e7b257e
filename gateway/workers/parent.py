"""The parent of a gateway's workers: it runs them and the engines, and serves no requests itself.

Workers share nothing but the stores. Each listens on the same port; each engine answers all of them. What one of them
needs to know of the others goes through here, and so does a change of the configuration.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial

from backends.runtime import RuntimeFolder
from gateway.api.admin import refusal
from gateway.app import new_metrics
from gateway.config import Config
from gateway.dashboard.watch import Watch
from gateway.engines import Engines, engine_models
from gateway.live import everybody
from gateway.logs import set_log_level
from gateway.metrics_shared import bury, count_in
from gateway.otlp_metrics import exported
from gateway.reload import Apply, Reloads, Version
from gateway.server import bind
from gateway.signals import Signals
from gateway.workers import messages
from gateway.workers.channel import ChannelLost, Reply
from gateway.workers.crew import Crew, Worker
from gateway.workers.messages import (
    Changed,
    Check,
    Current,
    Done,
    Failed,
    Find,
    Gather,
    Hold,
    Holds,
    Look,
    Refresh,
    Refusal,
    Reload,
    Rollback,
    Start,
)

GATHERING = 1.5  # seconds that a worker has to tell what it knows
CHANGING = 15.0  # seconds that a worker has to check or take a configuration; it may just be starting
NAME = "parent"  # in the shared metrics; workers have numbers

_log = logging.getLogger(__name__)


class Parent:
    """Engines and workers of one gateway."""

    def __init__(self, config: Config, read: Callable[[], Config], port: int, admin_port: int | None) -> None:
        """`read`: see `gateway.reload.Reloads`; ports are those that the workers open.

        Raises ValueError for a model that is not there. Once this has returned, `running` must be entered, as folders
        are made here and removed there.
        """
        self._port = port
        self._admin_port = admin_port
        self._folder = RuntimeFolder()
        count_in(self._folder.path, NAME)
        self._metrics = new_metrics(config, self._folder.path)
        self._watch = Watch(engine_models(config))
        try:
            self._engines = Engines(config, self._metrics, self._watch.load)
        except BaseException:
            self._folder.remove()
            raise
        self.reloads = Reloads(config, read, self._prepare, self._metrics)
        self.crew = Crew(config.server.workers, self._start, self._replies, partial(bury, self._folder.path))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises EngineStartError, WorkerStartError."""
        async with AsyncExitStack() as stack:
            stack.callback(self._folder.remove)
            stack.push_async_callback(self._engines.stop)
            await self._engines.start()
            stack.push_async_callback(self.crew.stop, signal.SIGTERM, 0.0)
            await self.crew.start()
            await stack.enter_async_context(exported(self.reloads.config.telemetry, self._metrics))
            yield

    def _start(self, name: str) -> Start:
        return Start(
            name=name,
            shared=str(self._folder.path),
            config=self.reloads.config,
            engines=self._engines.configs,
            port=self._port,
            admin_port=self._admin_port,
        )

    def _replies(self, worker: Worker) -> Reply:
        async def reply(question: bytes) -> bytes:
            match messages.to_parent.decode(question):
                case Gather(question=asked):
                    return await self._gather(asked, worker)
                case Current():
                    return messages.encode(Holds(version=self.reloads.version))
                case Reload():
                    return messages.encode(await _changed(self.reloads.reload))
                case Rollback():
                    return messages.encode(await _changed(self.reloads.rollback))

        return reply

    async def _gather(self, question: Refresh | Look | Find, asker: Worker) -> bytes:
        if isinstance(question, Refresh):
            self._engines.refresh()
        answers = [*(await self.crew.ask(question, GATHERING, but=asker)).values()]
        if isinstance(question, Look):
            answers.append(messages.encode(self._watch.share()))
        return messages.as_array(answers)

    async def _prepare(self, new: Config) -> Apply:
        """See `gateway.reload.Prepare`: all workers check before any of them takes it."""
        for answer in (await self.crew.ask(Check(config=new), CHANGING)).values():
            told = messages.outcome.decode(answer)
            if isinstance(told, Failed):
                raise ValueError(told.reason)

        async def apply() -> None:
            self._metrics.tenants([tenant.name for tenant in everybody(new)])
            set_log_level(new.telemetry.log_level)
            await asyncio.gather(*(self._hold(worker, new) for worker in self.crew.workers))

        return apply

    async def _hold(self, worker: Worker, new: Config) -> None:
        """A worker that is not there is started with it later; one that cannot take it is started again."""
        try:
            told = messages.outcome.decode(await worker.ask(Hold(config=new), CHANGING))
        except ChannelLost:
            return
        except TimeoutError:
            told = Failed(reason="it does not answer")
        if not isinstance(told, Done):
            _log.error("worker %s does not take the configuration and is started again", worker.name)
            worker.kill()


async def _changed(change: Callable[[], Awaitable[Version]]) -> Changed:
    try:
        return Holds(version=await change())
    except ValueError as error:
        told = refusal(error)
        return Refusal(status=told.status, message=told.message, code=told.code)


async def serve(config: Config, read: Callable[[], Config], ready: Callable[[int, int | None], None]) -> None:
    """Run everything until a signal, as `gateway.server.serve` does in one process.

    `ready` is called with the ports, when they can be used. Raises OSError where they are taken, ValueError,
    EngineStartError, WorkerStartError.
    """
    opened, gone = asyncio.Event(), asyncio.Event()
    server = config.server
    with ExitStack() as taken:
        port = taken.enter_context(reserve(server.host, server.port)).getsockname()[1]
        admin_port = None
        if server.admin is not None:
            second = taken.enter_context(reserve(server.admin.host, server.admin.port))
            admin_port = second.getsockname()[1]
        parent = Parent(config, read, port, admin_port)

        async def leave(number: signal.Signals, patience: float) -> None:
            _log.info("leaving: the workers may take %.1f s", patience)
            await parent.crew.stop(number, patience)
            gone.set()

        with Signals(leave, opened.is_set, server.drain_timeout, parent.reloads.hang_up).handled():
            async with parent.running():
                opened.set()
                ready(port, admin_port)
                await gone.wait()


def reserve(host: str, port: int) -> socket.socket:
    """A port that the workers can open, and nobody else: it is held, and never opened here.

    Raises OSError where anybody has it, also another gateway whose workers would share it.
    """
    with bind(host, port) as free:
        number = free.getsockname()[1]
    return bind(host, number, share=True)

"""Notices that an engine hangs: that it does not come up, that a step does not end, that its process is frozen.

When nothing has been heard of an engine for half a `step_timeout` it is asked for its load, which it tells between
two steps, or at once where it rests. A step may take `step_timeout` seconds: one that takes longer, or a process that
has been stopped (SIGSTOP), is noticed after one and a half times that at the latest.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from backends.link import EngineLink, EngineLost
from backends.wire import EngineConfig, Event, Load, Outputs, Refused

LOSS_TIMEOUT = 1.0  # seconds between the loss of the link to an engine that dies and the end of its process

_log = logging.getLogger(__name__)


class Watchdog:
    """Watches one life of an engine, over a link of its own."""

    def __init__(
        self, config: EngineConfig, ready_timeout: float, on_load: Callable[[Load], None] | None = None
    ) -> None:
        """In seconds: `ready_timeout` to the first answer; `config` says how long any step after that may take.

        `on_load` is told what the engine says of itself.
        """
        self.ready = asyncio.Event()  # set at the engine's first answer
        self._ready_timeout = ready_timeout
        self._step_timeout = config.step_timeout
        self._link = EngineLink(config, _ignore, self._hear, keys=False)
        self._on_load = on_load
        self._heard = False

    async def run(self) -> str:
        """Returns what is wrong with the engine, as the rest of a sentence, once something is.

        Of its death it tells late, for whoever waits for the process knows better why.
        """
        linked = asyncio.create_task(self._link.run())
        watched = asyncio.create_task(self._watch())
        try:
            await asyncio.wait((linked, watched), return_when=asyncio.FIRST_COMPLETED)
            if watched.done():
                return watched.result()
            await asyncio.sleep(LOSS_TIMEOUT)
            return "cannot be reached any more"
        finally:
            linked.cancel()
            watched.cancel()
            await asyncio.gather(linked, watched, return_exceptions=True)

    async def _watch(self) -> str:
        try:
            async with asyncio.timeout(self._ready_timeout):
                await self.ready.wait()
        except TimeoutError:
            return f"did not answer within {self._ready_timeout:g} s"
        while not await self._silent() or not await self._silent(ask=True):
            pass
        return f"made no step in {self._step_timeout:g} s"

    async def _silent(self, ask: bool = False) -> bool:
        """Whether half a step's time goes by without a word."""
        self._heard = False
        if ask:
            with contextlib.suppress(EngineLost):  # the link will tell
                self._link.ask()
        await asyncio.sleep(self._step_timeout / 2)
        return not self._heard

    def _hear(self, event: Event) -> None:
        self._heard = True
        if isinstance(event, Load):
            self.ready.set()
            self._pass_on(event)

    def _pass_on(self, load: Load) -> None:
        """What others make of it is no reason to let go of the engine."""
        try:
            if self._on_load is not None:
                self._on_load(load)
        except Exception:
            _log.exception("%s: nobody could use what it said of itself", load.engine)


def _ignore(answer: Outputs | Refused) -> None:
    """A watchdog submits nothing, so it gets no answers."""

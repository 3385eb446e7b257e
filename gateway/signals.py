"""What signals mean to a process that serves, or that others serve for."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

INTERRUPT_PATIENCE = 2.0  # seconds

Leave = Callable[[signal.Signals, float], Awaitable[None]]
"""Ends what runs in good order, within so many seconds for running requests, for this signal."""


class Signals:
    """SIGTERM and SIGINT leave, a second one of them ends the process at once. SIGHUP is passed on."""

    def __init__(
        self,
        leave: Leave,
        is_open: Callable[[], bool],
        drain_timeout: float,
        hang_up: Callable[[], None] | None = None,
    ) -> None:
        """Made in the task that serves, which is cancelled when it is to leave before it `is_open`."""
        self._leave_by = leave
        self._is_open = is_open
        self._hang_up = hang_up
        self._on_terminal = _on_terminal()
        self._patience = {
            signal.SIGTERM: drain_timeout,
            signal.SIGINT: min(drain_timeout, INTERRUPT_PATIENCE),
        }
        self._serving = asyncio.current_task()
        self._leaving: asyncio.Task[None] | None = None

    @property
    def received(self) -> bool:
        return self._leaving is not None

    @contextmanager
    def handled(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in self._patience:
            loop.add_signal_handler(number, self._receive, number)
        if self._hang_up is not None:
            loop.add_signal_handler(signal.SIGHUP, self._hung_up, self._hang_up)
        try:
            yield
        except asyncio.CancelledError:
            if self._is_open() or not self.received:
                raise
        finally:
            for number in (*self._patience, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _receive(self, number: signal.Signals) -> None:
        if self._leaving is not None:
            os._exit(128 + number)  # engines and workers die with their parent
        self._leaving = asyncio.ensure_future(self._leave(number))

    def _hung_up(self, hang_up: Callable[[], None]) -> None:
        """Asked for by an operator, or the terminal that the gateway was started from is gone."""
        if self._on_terminal and not _on_terminal():
            self._receive(signal.SIGTERM)
        else:
            hang_up()

    async def _leave(self, number: signal.Signals) -> None:
        if not self._is_open() and self._serving is not None:
            self._serving.cancel()
            return
        await self._leave_by(number, self._patience[number])


def _on_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True

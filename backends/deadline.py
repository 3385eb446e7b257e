"""A point in time that ends what is waited for, however often: one timer, where `asyncio.timeout` sets one per wait."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class Deadline:
    """Must be closed, or its timer keeps it alive. One task waits at a time; it need not be the same each time."""

    def __init__(self, at: float) -> None:
        """`at`: on the running event loop's clock."""
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Task[object] | None = None
        self._struck = False  # whether it was we who cancelled the waiting task
        self._passed = False
        self._timer = self._loop.call_at(at, self._pass)

    def move(self, at: float) -> None:
        """To another time, if it has not passed yet."""
        self._timer.cancel()
        self._timer = self._loop.call_at(at, self._pass)

    def close(self) -> None:
        """Idempotent."""
        self._timer.cancel()

    async def wait(self, work: Awaitable[T]) -> T:
        """What `work` gives. Raises TimeoutError when the time comes first: `work` is cancelled then.

        As with `asyncio.timeout`, work that never has to wait is done even after the deadline.
        """
        task = asyncio.current_task(self._loop)
        assert task is not None
        before, self._waiting, self._struck = task.cancelling(), task, False
        if self._passed:
            self._loop.call_soon(self._strike)
        try:
            return await work
        except asyncio.CancelledError as error:
            if self._struck and task.cancelling() - 1 <= before:
                raise TimeoutError from error
            raise  # somebody else has cancelled us, too
        finally:
            self._waiting = None
            if self._struck:
                task.uncancel()

    def _pass(self) -> None:
        self._passed = True
        self._strike()

    def _strike(self) -> None:
        if self._waiting is not None and not self._struck:
            self._struck = True
            self._waiting.cancel()

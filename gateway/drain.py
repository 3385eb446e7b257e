"""Leaving in good order: nothing new is taken, what runs may end, and what runs too long is cut."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from gateway.errors import draining

CUT_GRACE = 1.0  # seconds for error frames to be written once running requests are cut


class Drain:
    """What all requests of one gateway share about its end."""

    def __init__(self) -> None:
        self.leaving = False
        self.running = 0  # requests taken and not yet ended
        self._idle = asyncio.Event()
        self._idle.set()
        self._cut = asyncio.Event()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Around a request's whole life. Raises ApiError 503 when nothing new is taken."""
        if self.leaving:
            raise draining()
        self.running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()

    async def cut(self) -> NoReturn:
        """Waits until running requests are cut, then raises the ApiError to end them with."""
        await self._cut.wait()
        raise draining()

    async def leave(self, patience: float) -> None:
        """Returns when nothing runs any more, after `patience` seconds and the grace at the latest."""
        self.leaving = True
        if not await self._ended(patience):
            self._cut.set()
            await self._ended(CUT_GRACE)

    async def _ended(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

"""Leaving in good order: nothing new is taken, what runs may end, and what runs too long is cut."""

import asyncio
from functools import partial
from typing import Self

from gateway.errors import draining
from gateway.watching import End, Strike

CUT_GRACE = 1.0  # seconds for error frames to be written once running requests are cut


class Drain:
    """What all requests of one gateway share about its end."""

    def __init__(self) -> None:
        self.leaving = False
        self.running = 0  # requests taken and not yet ended
        self._idle = asyncio.Event()
        self._idle.set()
        self._cut = False
        self._strikes: set[Strike] = set()  # what ends each of those that run

    def taken(self) -> Self:
        """Surrounds a request's whole life. Raises ApiError 503 when nothing new is taken."""
        if self.leaving:
            raise draining()
        return self

    def __enter__(self) -> None:
        self.running += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self.running -= 1
        if not self.running:
            self._idle.set()

    def cut(self, strike: Strike) -> End:
        """A `gateway.watching.Watcher`: strikes with an ApiError when running requests are cut."""
        self._strikes.add(strike)
        if self._cut:
            strike(draining())
        return partial(self._strikes.discard, strike)

    async def leave(self, patience: float) -> None:
        """Returns when nothing runs any more, after `patience` seconds and the grace at the latest."""
        self.leaving = True
        if not await self._ended(patience):
            self._cut = True
            for strike in list(self._strikes):
                strike(draining())
            await self._ended(CUT_GRACE)

    async def _ended(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

"""Whether a server that keeps somebody waiting is silent, or only has a long answer to give.

A history of megabytes takes its time; a frozen server takes all that its timeouts allow, from every request. So who
has waited for a moment has the smallest question asked beside its own, and gives up when neither that nor anybody
else's is answered.

Time is counted in ticks of the event loop, not by the clock: while this process gets no CPU it hears nothing, whatever
the server says, and what came meanwhile is read behind the timers that have become due.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from gateway.watching import Strike, watched

T = TypeVar("T")

TICK = 0.008  # seconds; a stall of this process is one tick, however long, so that it is no silence of the server
LATE = 0.004  # seconds; a tick that rings later tells that this process was kept from listening
SUSPICIOUS, SILENT = 2, 6  # ticks without a word from the server: it is asked, it is given up
STARVED = 2 * SILENT  # the same where all ticks ring late: some time it must be given up
AGAIN = 0.2  # seconds after which it is asked again if it did not answer; so it is found without a request


class Pulse:
    """One server's, shared by all who ask it."""

    def __init__(
        self,
        ping: Callable[[], Awaitable[object]],
        awake: Callable[[], None],
        hang_up: Callable[[], Awaitable[object]] | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        """`ping`: the smallest question, on a connection of its own, since a new one takes several answers to make;
        `awake` is told of each answer to it, `lost` of each that does not come; `hang_up`: closes the connection."""
        self._ping = ping
        self._awake = awake
        self._lost = lost
        self._hang_up = hang_up
        self._pinging: asyncio.Future[object] | None = None
        self._again: asyncio.TimerHandle | None = None
        self.words = 0  # how often the server has said anything

    async def heard(
        self, question: Coroutine[Any, Any, T], silence: Exception, slow: Exception | None = None
    ) -> T:
        """The answer. Raises `silence` where the server says nothing to anybody; the question is cancelled then.

        `slow`: raised, where it is given, when this one takes as long, whatever others hear meanwhile.
        """
        result = await watched(question, lambda strike: _Wait(self, strike, silence, slow).stop)
        self.words += 1
        return result

    def feel(self) -> None:
        """Ask, unless that question is under way, and go on asking until it is answered. Its own timeouts end it."""
        if self._pinging is None:
            self._rest()
            self._pinging = asyncio.ensure_future(self._ping())
            self._pinging.add_done_callback(self._felt)

    async def close(self) -> None:
        """Idempotent."""
        self._rest()
        if self._pinging is not None:
            self._pinging.cancel()
        if self._hang_up is not None:
            await self._hang_up()

    def _felt(self, pinging: asyncio.Future[object]) -> None:
        self._pinging = None
        if pinging.cancelled():
            return
        if pinging.exception() is None:
            self.words += 1
            self._awake()
            return
        if self._lost is not None:
            self._lost()
        self._again = pinging.get_loop().call_later(AGAIN, self.feel)

    def _rest(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None


class _Wait:
    """Counts ticks in which nobody has heard anything, and those in which this question had no answer."""

    def __init__(self, pulse: Pulse, strike: Strike, silence: Exception, slow: Exception | None) -> None:
        self._pulse = pulse
        self._strike = strike
        self._silence = silence
        self._slow = slow
        self._words = pulse.words
        self._quiet = self._waited = 0
        self._loop = asyncio.get_running_loop()
        self._start()

    def _start(self) -> None:
        self._due = time.monotonic() + TICK  # exact, which the clock of an event loop need not be
        self._timer = self._loop.call_later(TICK, self._tick)

    def stop(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        self._waited += 1
        self._quiet = self._quiet + 1 if self._words == self._pulse.words else 0
        self._words = self._pulse.words
        enough = STARVED if time.monotonic() - self._due > LATE else SILENT
        if self._quiet >= enough:
            self._pulse.feel()
            return self._strike(self._silence)
        if self._slow is not None and self._waited >= enough:
            return self._strike(self._slow)
        if self._quiet >= SUSPICIOUS:
            self._pulse.feel()
        self._start()

"""Whether a server that keeps somebody waiting is silent, or only has a long answer to give.

A history of megabytes takes its time; a frozen server takes all that its timeouts allow, from every request. So who
has waited for a moment has the smallest question asked beside its own, and gives up when neither that nor anybody
else's is answered.

Time is counted in ticks of the event loop, not by the clock: while this process gets no CPU it hears nothing, whatever
the server says, and what came meanwhile is read behind the timers that have become due. For the same reason no
connection has a timeout of its own.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from gateway.watching import Strike, watched

logger = logging.getLogger(__name__)

T = TypeVar("T")

TICK = 0.008  # seconds; a stall of this process is one tick, however long, so that it is no silence of the server
LATE = 0.004  # seconds; a tick that rings later tells that this process was kept from listening
STARVED = 0.25  # what such a tick counts for: some time a silent server must be given up, whoever asks
SUSPICIOUS, SILENT = 2, 6  # ticks without a word from the server: it is asked, it is given up
LONG = 62  # ticks, half a second, that one answer may take while there are others
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
        self._pinging: asyncio.Future[None] | None = None
        self._again: asyncio.TimerHandle | None = None
        self._missed = False
        self.words = 0  # how often the server has said anything

    async def heard(
        self, question: Coroutine[Any, Any, T], silence: Exception, slow: Exception, most: int = LONG
    ) -> T:
        """The answer. Raises `silence` where the server says nothing to anybody, and `slow` where this one takes more
        than `most` ticks, whatever others hear meanwhile; the question is cancelled then."""
        result = await watched(question, lambda strike: _Listening(self, silence, most, slow, strike).stop)
        self.words += 1
        return result

    def feel(self) -> None:
        """Ask, unless that question is under way, and go on asking until it is answered."""
        if self._pinging is None:
            self._rest()
            self._pinging = asyncio.ensure_future(self._beat())
            self._pinging.add_done_callback(self._felt)

    async def close(self) -> None:
        """Idempotent."""
        self._rest()
        if self._pinging is not None:
            self._pinging.cancel()
        if self._hang_up is not None:
            await self._hang_up()

    async def _beat(self) -> None:
        async def ping() -> None:
            await self._ping()

        await watched(
            ping(), lambda strike: _Patience(LONG, TimeoutError("no answer to a ping"), strike).stop
        )

    def _felt(self, pinging: asyncio.Future[None]) -> None:
        self._pinging = None
        if pinging.cancelled():
            return
        if (error := pinging.exception()) is None:
            self.words += 1
            self._missed = False
            self._awake()
            return
        if not self._missed:  # once for as long as it lasts
            self._missed = True
            logger.warning("the store does not answer: %s", error or type(error).__name__)
        if self._lost is not None:
            self._lost()
        self._again = pinging.get_loop().call_later(AGAIN, self.feel)

    def _rest(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None


class _Patience:
    """Strikes with `slow` after `most` ticks. A `Watcher`'s state; `stop` ends it."""

    def __init__(self, most: int, slow: Exception, strike: Strike) -> None:
        self._most = most
        self._slow = slow
        self._strike = strike
        self._waited = 0.0
        self._loop = asyncio.get_running_loop()
        self._start()

    def stop(self) -> None:
        self._timer.cancel()

    def _start(self) -> None:
        self._due = time.monotonic() + TICK  # exact, which the clock of an event loop need not be
        self._timer = self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        late = time.monotonic() - self._due > LATE
        error = self._passed(STARVED if late else 1.0)
        if error is None:
            self._start()
        else:
            self._strike(error)

    def _passed(self, ticks: float) -> Exception | None:
        """What there is to strike with."""
        self._waited += ticks
        return self._slow if self._waited >= self._most else None


class _Listening(_Patience):
    """Strikes with `silence`, too, after ticks in which nobody has heard anything, and asks before."""

    def __init__(self, pulse: Pulse, silence: Exception, most: int, slow: Exception, strike: Strike) -> None:
        self._pulse = pulse
        self._silence = silence
        self._words = pulse.words
        self._quiet = 0.0
        super().__init__(most, slow, strike)

    def _passed(self, ticks: float) -> Exception | None:
        self._quiet = self._quiet + ticks if self._words == self._pulse.words else 0.0
        self._words = self._pulse.words
        if self._quiet >= SUSPICIOUS:
            self._pulse.feel()
        slow = super()._passed(ticks)
        return self._silence if self._quiet >= SILENT else slow

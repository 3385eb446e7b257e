"""Gateway workers: started together, watched, started again when they end, made to leave in good order."""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from backends.supervisor import FIRST_DELAY, LAST_DELAY, STEADY
from gateway.drain import CUT_GRACE
from gateway.workers import messages
from gateway.workers.channel import Channel, ChannelLost, Reply
from gateway.workers.messages import Failed, Ping, Start

STARTING = 120.0  # seconds that a worker may take to serve: machines may be slow and busy
PING_EVERY = 2.0  # seconds
HUNG = 10.0  # seconds without an answer, after which a worker is killed: its event loop stands still
CLOSING = (
    5.0  # seconds from the end of its last request to that of its process: records and traces are written
)
MODULE = (sys.executable, "-m", "gateway.workers")

_log = logging.getLogger(__name__)

MakeStart = Callable[[str], Start]
"""What the worker of this name is told, each time that one is started."""

MakeReply = Callable[["Worker"], Reply]
"""Who answers a worker's questions."""


class WorkerStartError(RuntimeError):
    """A gateway worker did not come up. The message is for the operator."""


class Worker:
    """One of them, through all its lives."""

    def __init__(self, name: str, start: MakeStart, reply: MakeReply, ended: Callable[[str], None]) -> None:
        """`ended` is told its name at the end of each life."""
        self.name = name
        self._start = start
        self._reply = reply(self)
        self._ended = ended
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """None while there is none."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Returns when it serves. Raises WorkerStartError when it does not come to that."""
        first = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(first), name=f"keeper of worker {self.name}")
        opened = asyncio.create_task(first.wait())
        try:
            await asyncio.wait((opened, self._keeper), return_when=asyncio.FIRST_COMPLETED)
            if self._keeper.done():
                self._keeper.result()
        finally:
            opened.cancel()

    async def ask(self, question: messages.ToWorker, timeout: float | None = None) -> bytes:
        """Raises ChannelLost where no worker is there to answer, TimeoutError after `timeout` seconds."""
        if self._channel is None:
            raise ChannelLost(f"worker {self.name} is not running")
        return await self._channel.ask(messages.encode(question), timeout)

    def kill(self) -> None:
        """It is started again."""
        if self.pid is not None and self._process is not None:
            self._process.kill()

    async def stop(self, number: signal.Signals, patience: float) -> None:
        """Ask it to go by this signal, and make it when it takes longer than `patience` seconds. It stays away."""
        process = self._process
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        if process is None or process.returncode is not None:
            return
        process.send_signal(number)
        try:
            async with asyncio.timeout(patience + CUT_GRACE + CLOSING):
                await process.wait()
        except TimeoutError:
            _log.error("worker %s did not end in time and is killed", self.name)
            process.kill()
            await process.wait()

    async def _keep(self, first: asyncio.Event) -> None:
        """One life after the other. Raises WorkerStartError when the first comes to nothing."""
        delay = FIRST_DELAY
        while True:
            born = time.monotonic()
            end = await self._live(first)
            self._ended(self.name)
            if not first.is_set():
                raise WorkerStartError(end)
            delay = FIRST_DELAY if time.monotonic() - born >= STEADY else delay
            _log.error("%s; started again in %.1f s", end, delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_DELAY)

    async def _live(self, opened: asyncio.Event) -> str:
        """One life. Returns how it ended, in words."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = await self._spawn(theirs)
        except OSError as error:
            ours.close()
            return f"gateway worker {self.name} cannot be started: {error.strerror}"
        self._channel = await Channel.over(ours, self._reply)
        opening = asyncio.create_task(self._open(opened))
        work = [
            asyncio.create_task(self._channel.run()),
            opening,
            asyncio.create_task(self._watch(opening)),
        ]
        try:
            status = await self._process.wait()
        finally:
            self._channel = None
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        told = opening.result() if opening.done() and not opening.cancelled() else None
        return told or f"gateway worker {self.name} ended with {_status(status)}"

    async def _spawn(self, end: socket.socket) -> asyncio.subprocess.Process:
        """In a session of its own, so that Ctrl-C in a terminal reaches only this process."""
        return await asyncio.create_subprocess_exec(
            *MODULE,
            "--channel",
            str(end.fileno()),
            "--parent",
            str(os.getpid()),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(end.fileno(),),
            start_new_session=True,
        )

    async def _open(self, opened: asyncio.Event) -> str | None:
        """Returns the worker's reason where it cannot serve."""
        with suppress(ChannelLost):
            told = messages.outcome.decode(await self.ask(self._start(self.name)))
            if isinstance(told, Failed):
                return told.reason
            opened.set()
        return None

    async def _watch(self, opening: asyncio.Task[str | None]) -> None:
        """Kill it when it does not come up, and then when its event loop stands still."""
        await asyncio.wait((opening,), timeout=STARTING)
        if not opening.done():
            _log.error("gateway worker %s does not serve after %.0f s and is killed", self.name, STARTING)
            return self.kill()
        with suppress(ChannelLost):  # its end is waited for elsewhere
            while await self._answers():
                await asyncio.sleep(PING_EVERY)
            _log.error("gateway worker %s has not answered for %.0f s and is killed", self.name, HUNG)
            self.kill()

    async def _answers(self) -> bool:
        """Asked twice: this process may have been kept from hearing the first answer. Raises ChannelLost."""
        for _ in range(2):
            with suppress(TimeoutError):
                await self.ask(Ping(), HUNG / 2)
                return True
        return False


class Crew:
    """All workers of a gateway."""

    def __init__(self, count: int, start: MakeStart, reply: MakeReply, ended: Callable[[str], None]) -> None:
        """As `Worker`; their names are "0", "1" and so on."""
        self.workers = tuple(Worker(str(number), start, reply, ended) for number in range(count))

    async def start(self) -> None:
        """Returns when all serve. Raises WorkerStartError; none runs any more then."""
        try:
            async with asyncio.TaskGroup() as group:
                for worker in self.workers:
                    group.create_task(worker.start())
        except BaseExceptionGroup as errors:
            await self.stop(signal.SIGTERM, 0.0)
            raise errors.exceptions[0] from None
        except BaseException:
            await self.stop(signal.SIGTERM, 0.0)
            raise

    async def stop(self, number: signal.Signals, patience: float) -> None:
        """See `Worker.stop`. Idempotent."""
        await asyncio.gather(*(worker.stop(number, patience) for worker in self.workers))

    async def ask(
        self, question: messages.ToWorker, timeout: float, but: Worker | None = None
    ) -> dict[Worker, bytes]:
        """The answers of all that give one in time, `but` left out."""
        asked = [worker for worker in self.workers if worker is not but]
        answers = await asyncio.gather(
            *(worker.ask(question, timeout) for worker in asked), return_exceptions=True
        )
        return {
            worker: answer for worker, answer in zip(asked, answers, strict=True) if isinstance(answer, bytes)
        }


def _status(code: int) -> str:
    return f"exit status {code}" if code >= 0 else signal.Signals(-code).name

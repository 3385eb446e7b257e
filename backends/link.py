"""The gateway's end of the wire: one connection to one life of an engine process.

When the engine dies the link ends for good, with everything that was still on its way in either direction; whoever
wants to talk to the next life makes a new link. So no message can reach an engine that it was not meant for.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from backends.wire import (
    EngineConfig,
    Event,
    Evicted,
    Load,
    Outputs,
    Refused,
    Snapshot,
    Stored,
    Subscribe,
    ToEngine,
    decode_event,
    decode_from_engine,
    encode,
    socket_path,
)

T = TypeVar("T")

AT_ONCE = 100  # messages that are read before anybody else has a turn
ASK_AGAIN = 0.1  # seconds without a snapshot after which it is asked for again

_log = logging.getLogger(__name__)


class EngineLost(Exception):
    """The engine is not there, or not there any more."""


class EventOrder:
    """Which of an engine's events can be used, in the order in which they come. Pure."""

    def __init__(self) -> None:
        self.synced = False  # false until a snapshot, and after a gap
        self._incarnation: str | None = None
        self._sequence = 0

    def accept(self, event: Event) -> bool:
        """Whether to use it. Raises EngineLost when it comes from another life of the engine than those before."""
        match event:
            case Stored() | Evicted():
                self.synced = self.synced and event.sequence == self._sequence + 1
                self._sequence = event.sequence
            case Snapshot():
                self._same_life(event.incarnation)
                self._sequence, self.synced = event.sequence, True
            case Load():
                self._same_life(event.incarnation)
        return self.synced

    def _same_life(self, incarnation: str) -> None:
        if self._incarnation not in (None, incarnation):
            raise EngineLost("the engine was restarted")
        self._incarnation = incarnation


class EngineLink:
    """Sends to an engine, and calls back with what comes from it, in the event loop.

    The first Load that `on_event` gets says that the engine is ready; a Snapshot has come just before it.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_answer: Callable[[Outputs | Refused], None],
        on_event: Callable[[Event], None],
        heartbeat: float | None = None,
    ) -> None:
        """`heartbeat`: seconds after which an engine whose process does not even answer a ping of the transport is
        asked again, and after as many more is lost; None: it may be as quiet as it likes.

        Raises ValueError on an address that is not `ipc://`.
        """
        for address in (config.address, config.events):
            socket_path(address)
        self._name = config.name
        self._on_answer = on_answer
        self._on_event = on_event
        self._order = EventOrder()
        self._connected = asyncio.Event()
        self._unsynced = asyncio.Event()
        self._unsynced.set()
        self._inlets: list[_Inlet[Any]] = []
        self._answers: _Inlet[bytes] | None = None
        self._end: asyncio.Future[None] | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.linger = 0
        self._commands = self._context.socket(zmq.DEALER)
        self._commands.setsockopt(zmq.IMMEDIATE, 1)  # nothing waits in a queue for an engine to come
        self._commands.setsockopt(zmq.SNDHWM, 0)  # so a refused send means: not connected
        if heartbeat is not None:
            self._commands.setsockopt(zmq.HEARTBEAT_IVL, max(1, round(1000 * heartbeat)))
        self._events = self._context.socket(zmq.SUB)
        self._events.subscribe(b"")
        self._monitor = self._commands.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._events.connect(config.events)
        self._commands.connect(config.address)

    def send(self, message: ToEngine) -> None:
        """Never waits. Raises EngineLost when no engine is connected."""
        try:
            self._commands.send(encode(message), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise EngineLost("the engine cannot be reached") from error
        if self._answers is not None:
            self._answers.look_again()

    async def run(self) -> None:
        """Serve the link; returns when the engine is lost. What a callback raises comes out in an ExceptionGroup."""
        self._end = asyncio.get_running_loop().create_future()
        self._inlet(self._monitor, self._receive_monitored, self._watch)
        receive = partial(self._commands.recv, zmq.NOBLOCK)
        self._answers = self._inlet(self._commands, receive, self._read_answer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ask())
                await self._end
        except* EngineLost as lost:
            _log.info("%s: %s", self._name, lost.exceptions[0])
        finally:
            self.close()

    def close(self) -> None:
        """Idempotent. What the engine has not yet taken is dropped."""
        for inlet in self._inlets:
            inlet.close()
        self._context.destroy()

    def _inlet(
        self, socket: "zmq.Socket[bytes]", receive: Callable[[], T], take: Callable[[T], None]
    ) -> "_Inlet[T]":
        inlet = _Inlet(socket, receive, take, self._fail)
        self._inlets.append(inlet)
        return inlet

    def _fail(self, error: Exception) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_exception(error)

    def _receive_monitored(self) -> dict[str, Any]:
        return dict(recv_monitor_message(self._monitor, zmq.NOBLOCK))

    def _watch(self, message: Mapping[str, Any]) -> None:
        if message["event"] == zmq.EVENT_DISCONNECTED:
            raise EngineLost("the engine's process is gone")
        if not self._connected.is_set():
            self._connected.set()
            # ready means ready for orders
            self._inlet(self._events, partial(self._events.recv, zmq.NOBLOCK), self._read_event)

    async def _ask(self) -> None:
        """Ask for a snapshot until one has come: the first may be sent before our subscription is known."""
        await self._connected.wait()
        while True:
            await self._unsynced.wait()
            self.send(Subscribe())
            await asyncio.sleep(ASK_AGAIN)

    def _read_answer(self, body: bytes) -> None:
        try:
            answer = decode_from_engine(body)
        except msgspec.MsgspecError as error:
            _log.error("%s: dropped a malformed answer: %s", self._name, error)
        else:
            self._on_answer(answer)

    def _read_event(self, body: bytes) -> None:
        try:
            event = decode_event(body)
        except msgspec.MsgspecError as error:
            _log.error("%s: dropped a malformed event: %s", self._name, error)
            return
        if self._order.accept(event):
            self._unsynced.clear()
            self._on_event(event)
        else:
            self._unsynced.set()


class _Inlet(Generic[T]):
    """Hands on what a socket receives, as it comes: without a future for each message, as ZeroMQ's own way has it.

    Its descriptor tells of news once, and sending may swallow that; so all that is there is read, and looked for again
    after sending. What `take` raises goes to `fail`, and nothing is read after that.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        receive: Callable[[], T],
        take: Callable[[T], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """`receive`: raises zmq.Again where nothing is there."""
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._take = take
        self._fail = fail
        self._descriptor: int | None = socket.FD
        self._loop.add_reader(socket.FD, self._read)
        self.look_again()

    def look_again(self) -> None:
        """Soon, not now: who sends is not called back in the middle of it."""
        self._loop.call_soon(self._read)

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            self._descriptor = None

    def _read(self) -> None:
        try:
            for _ in range(AT_ONCE):
                if self._descriptor is None:
                    return
                self._take(self._receive())
            self.look_again()
        except zmq.Again:
            pass
        except Exception as error:
            self.close()
            self._fail(error)

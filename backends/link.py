"""The gateway's end of the wire: one connection to one life of an engine process.

When the engine dies the link ends for good, with everything that was still on its way in either direction; whoever
wants to talk to the next life makes a new link. So no message can reach an engine that it was not meant for.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from backends.frames import Frames, framed
from backends.wire import (
    EngineConfig,
    Event,
    Outputs,
    Refused,
    Subscribe,
    ToEngine,
    decode_from_engine,
    encode,
    socket_path,
)

TRY_AGAIN = 0.05  # seconds between two looks for an engine that is not there yet

_log = logging.getLogger(__name__)


class EngineLost(Exception):
    """The engine is not there, or not there any more."""


class EngineLink:
    """Sends to an engine, and calls back with what comes from it, in the event loop.

    The first Load that `on_event` gets says that the engine is ready; with `keys` a Snapshot comes just before it.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_answer: Callable[[Outputs | Refused], None],
        on_event: Callable[[Event], None],
        keys: bool,
    ) -> None:
        """`keys`: be told what is in the engine's prefix cache, too. Raises ValueError on a bad path of a socket."""
        self._name = config.name
        self._path = socket_path(config.socket)
        self._on_answer = on_answer
        self._on_event = on_event
        self._hello = Subscribe(keys=keys)
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None

    def send(self, message: ToEngine) -> None:
        """Never waits. Raises EngineLost when no engine is connected."""
        if self._transport is None or self._transport.is_closing():
            raise EngineLost("the engine cannot be reached")
        self._transport.write(framed(encode(message)))

    def ask(self) -> None:
        """For a Load, which comes between two steps. Raises EngineLost."""
        self.send(self._hello)

    async def run(self) -> None:
        """Serve the link, once; returns when the engine is lost. Raises what a callback raises."""
        end: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._transport = await self._connect(end)
        try:
            self.ask()
            raise await end
        except EngineLost as lost:
            _log.info("%s: %s", self._name, lost)
        finally:
            self._transport.abort()

    async def _connect(self, end: asyncio.Future[Exception]) -> asyncio.Transport:
        """Once there is an engine."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                transport, _ = await loop.create_unix_connection(
                    lambda: _Wire(self._take, end), str(self._path)
                )
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                await asyncio.sleep(TRY_AGAIN)
            else:
                return transport

    def _take(self, data: bytes) -> None:
        for body in self._frames.take(data):
            try:
                message = decode_from_engine(body)
            except msgspec.MsgspecError as error:
                _log.error("%s: dropped a malformed message: %s", self._name, error)
                continue
            if isinstance(message, Outputs | Refused):
                self._on_answer(message)
            else:
                self._on_event(message)


class _Wire(asyncio.Protocol):
    """Hands on what arrives; how it ends is set on `end`, and nothing is read after that."""

    def __init__(self, take: Callable[[bytes], None], end: asyncio.Future[Exception]) -> None:
        self._take = take
        self._end = end

    def data_received(self, data: bytes) -> None:
        if self._end.done():
            return
        try:
            self._take(data)
        except Exception as error:
            self._end.set_result(error)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._end.done():
            self._end.set_result(EngineLost("the engine's process is gone"))

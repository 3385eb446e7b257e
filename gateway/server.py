"""Serving an application on a socket, and leaving when a signal asks for it.

SIGTERM and SIGINT drain: no new requests, and running ones may end within `server.drain_timeout` or, on SIGINT, within
two seconds, since somebody is waiting at a terminal. A second signal ends the process at once.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.types import ASGIApp

from gateway.drain import Drain
from gateway.protocol import GuardedProtocol

INTERRUPT_PATIENCE = 2.0  # seconds
KEEP_ALIVE = 65  # seconds; longer than what common proxies keep, so that they close first

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`, on uvloop: it is quicker, and sends what is written in one turn of the loop in one piece."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def bind(host: str, port: int) -> socket.socket:
    """A socket that is taken but not yet open: connections are refused until everything is ready.

    Raises OSError, which names host and port.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


class Server(uvicorn.Server):
    """uvicorn without its own handling of signals, and with a word when it is open."""

    def __init__(self, app: ASGIApp, opened: Callable[[], None]) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings are one per bad client
        super().__init__(
            uvicorn.Config(
                app,
                http=GuardedProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=1,
            )
        )
        self._opened = opened

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._opened()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Signals:
    """What the first signal and the second one do."""

    def __init__(self, server: Server, drain: Drain, drain_timeout: float) -> None:
        self._server = server
        self._drain = drain
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
        try:
            yield
        finally:
            for number in self._patience:
                loop.remove_signal_handler(number)

    def _receive(self, number: signal.Signals) -> None:
        if self._leaving is not None:
            os._exit(128 + number)  # engines die with their parent
        self._leaving = asyncio.ensure_future(self._leave(self._patience[number]))

    async def _leave(self, patience: float) -> None:
        logger.info("leaving: %d requests run", self._drain.running)
        if not self._server.started and self._serving is not None:
            self._serving.cancel()
            return
        await self._drain.leave(patience)
        self._server.should_exit = True


async def serve(
    app: Starlette, listener: socket.socket, drain: Drain, drain_timeout: float, opened: Callable[[], None]
) -> None:
    """Run the lifespan of `app` and serve it on `listener` until a signal. `opened` is called when it can be used.

    What the lifespan raises, for instance when an engine does not start, comes out as it is.
    """
    server = Server(app, opened)
    signals = _Signals(server, drain, drain_timeout)
    with signals.handled():
        try:
            async with app.router.lifespan_context(app):
                await server.serve(sockets=[listener])
        except asyncio.CancelledError:
            if server.started or not signals.received:
                raise

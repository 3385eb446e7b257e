"""Serving an application on a socket, and leaving when a signal asks for it.

SIGTERM and SIGINT drain: no new requests, and running ones may end within `server.drain_timeout` or, on SIGINT, within
two seconds, since somebody is waiting at a terminal. A second signal ends the process at once. SIGHUP is passed on.
"""

import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.types import ASGIApp

from backends.resident import into_large_pages
from gateway.drain import Drain
from gateway.protocol import GuardedProtocol
from gateway.signals import Signals

# New objects before the collector looks at them, and its rounds before it looks at older ones. A request leaves no
# cycles, a connection about seventy objects of them; with Python's 700, each burst of requests is gone through in vain.
# Everybody waits while it looks: for 20,000 that were alive it took nine milliseconds.
GARBAGE = 5_000, 20, 10
SWITCH = (
    0.001  # seconds that a thread which computes, as one that renders metrics, may hold up the event loop
)
KEEP_ALIVE = 65  # seconds; longer than what common proxies keep, so that they close first

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`, on uvloop: it is quicker, and sends what is written in one turn of the loop in one piece."""
    _allow_all_files()
    sys.setswitchinterval(SWITCH)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def _allow_all_files() -> None:
    """As many open files as an administrator permits: a stream has two sockets, and shells begin with 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def bind(host: str, port: int, *, share: bool = False) -> socket.socket:
    """A socket that is taken but not yet open: connections are refused until everything is ready.

    `share`: with other processes of this user who say so too; the kernel spreads connections evenly over those that
    are open. One listening socket for all of them would not: whoever wakes first takes all that wait.

    Raises OSError, which names host and port.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if share:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
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


def started(servers: Iterable[Server]) -> bool:
    return all(server.started for server in servers)


@dataclass(frozen=True)
class Door:
    """An application and the socket that it is served on."""

    app: Starlette
    listener: socket.socket


async def serve(
    doors: Sequence[Door],
    drain: Drain,
    drain_timeout: float,
    opened: Callable[[], None],
    hang_up: Callable[[], None] | None = None,
) -> None:
    """Run the lifespan of the first door's application and serve all of them until a signal.

    `opened` is called when they can be used, `hang_up` on SIGHUP. What the lifespan raises, for instance when an
    engine does not start, comes out as it is.
    """
    servers: list[Server] = []

    def open_all() -> None:
        if started(servers):
            opened()

    servers += [Server(door.app, open_all) for door in doors]

    async def leave(number: signal.Signals, patience: float) -> None:
        logger.info("leaving: %d requests run", drain.running)
        await drain.leave(patience)
        for server in servers:
            server.should_exit = True

    with Signals(leave, lambda: started(servers), drain_timeout, hang_up).handled():
        async with doors[0].app.router.lifespan_context(doors[0].app):
            gc.collect()
            gc.freeze()  # what is there by now stays; going through it again and again would hold up requests
            gc.set_threshold(*GARBAGE)
            into_large_pages()  # while nobody waits
            serving = (
                server.serve(sockets=[door.listener]) for server, door in zip(servers, doors, strict=True)
            )
            await asyncio.gather(*serving)

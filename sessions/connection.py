"""Connections to Redis that fail fast: left to its defaults, the client waits a minute for a server that is frozen."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig

CONNECTIONS = 128
FINISHING = 1.0  # seconds that a connection may take once nobody waits for it
SCARCE = 1.0  # seconds after which one is tried again that could not be made beside others
TELL_AGAIN = 60.0  # seconds

_log = logging.getLogger(__name__)


class Connections(ConnectionPool):
    """Hands out the connection that was used last. Who finds none free waits for one, the first the longest.

    A server may take fewer than we would make (`maxclients`), or this process have no more files: so where one cannot
    be made and there are others, one of those is waited for, and that one's place is empty for a while.

    The client's own pool that waits takes two locks and several events for each command, a tenth of all that a request
    costs the gateway.
    """

    def __init__(self, patience: float | None = None, **options: Any) -> None:
        """`patience`: seconds to wait for a connection; None for as long as it takes."""
        super().__init__(**options)
        self._patience = patience
        self._free = asyncio.Semaphore(self.max_connections)
        self._idle: deque[AbstractConnection] = deque()  # the one that was used last at the end
        self._used: set[AbstractConnection] = set()
        self._made: set[AbstractConnection] = set()  # of all of these, what the server has taken
        self._told = -math.inf  # monotonic seconds

    @property
    def ready(self) -> bool:
        """Whether there is one that is made and free."""
        return bool(self._idle) and self._idle[-1].is_connected

    async def get_connection(self, command_name: object = None, *keys: object, **options: object) -> Any:
        """Raises redis.exceptions.RedisError or OSError where none is free in time, or none at all can be made."""
        while True:
            connection = await self._next()
            try:
                await self.ensure_connection(connection)
            except (RedisError, OSError) as error:
                self._made.discard(connection)
                if not any(each.is_connected for each in self._made):
                    await self.release(connection)
                    raise
                await connection.disconnect(nowait=True)
                self._leave_empty(connection, error)
            except BaseException:
                await self.release(connection)
                raise
            else:
                self._made.add(connection)
                return connection

    async def release(self, connection: AbstractConnection) -> None:
        self._used.discard(connection)
        if connection.is_connected:
            self._idle.append(connection)
        else:
            self._made.discard(connection)
            self._idle.appendleft(connection)
        self._free.release()

    async def disconnect(self, inuse_connections: bool = True) -> None:
        ours = [*self._idle, *(self._used if inuse_connections else ())]
        await asyncio.gather(*(each.disconnect() for each in ours), return_exceptions=True)

    async def _next(self) -> AbstractConnection:
        try:
            async with asyncio.timeout(self._patience):
                await self._free.acquire()
        except TimeoutError:
            raise ConnectionLost("no connection was free in time") from None
        try:
            connection = self._idle.pop() if self._idle else self.make_connection()  # type: ignore[no-untyped-call]
        except BaseException:  # the client reads a file for each, and there may be no more files
            self._free.release()
            raise
        self._used.add(connection)
        return connection

    def _leave_empty(self, connection: AbstractConnection, error: Exception) -> None:
        self._used.discard(connection)
        asyncio.get_running_loop().call_later(SCARCE, self._free.release)
        now = time.monotonic()
        if now - self._told >= TELL_AGAIN:
            self._told = now
            _log.warning(
                "Redis: no further connection can be made (%s): questions wait for those there are. If it lasts,"
                " `maxclients` of the server, or the files that this process may open, are fewer than it could use.",
                error,
            )


class FinishingRedis(Redis):
    """Finishes the connections that it begins, and the first answer over each.

    Making one takes several answers of the server, and whoever is in a hurry waits for hardly more than one: a server
    some way off would never be used. So a connection that its first user has no time to wait for is made all the same,
    and its first answer is read, since a connection whose command is given up is lost.
    """

    connection_pool: Connections

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._finishing: set[asyncio.Future[Any]] = set()

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Once, where the client's own makes ready to do it several times."""
        asking: Coroutine[Any, Any, Any] = self._ask(args, options)
        if self.connection_pool.ready:
            return await asking
        first = asyncio.ensure_future(asking)
        try:
            return await asyncio.shield(first)
        except asyncio.CancelledError:
            self._finish(first)
            raise

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        for first in self._finishing:
            first.cancel()
        await asyncio.gather(*self._finishing, return_exceptions=True)
        await super().aclose(close_connection_pool)

    async def _ask(self, command: tuple[Any, ...], options: dict[str, Any]) -> Any:
        connection = await self.connection_pool.get_connection()
        try:
            await connection.send_command(*command)
            return await self.parse_response(connection, command[0], **options)
        finally:
            await self.connection_pool.release(connection)

    def _finish(self, first: asyncio.Future[Any]) -> None:
        self._finishing.add(first)
        late = first.get_loop().call_later(FINISHING, first.cancel)

        def finished(_: asyncio.Future[Any]) -> None:
            late.cancel()
            self._finishing.discard(first)
            if not first.cancelled():
                first.exception()  # nobody is left to hear of it

        first.add_done_callback(finished)


async def twice(ask: Callable[[], Awaitable[Any]]) -> Any:
    """What `ask` gives, asked once more where the connection is lost under it: for what does the same when it is done
    twice, since nobody knows whether it was done. Servers that fail over or restart close all of them at once."""
    try:
        return await ask()
    except ConnectionLost:
        return await ask()


def connect(url: str, timeout: float | None) -> Redis:
    """A client with a pool of its own, closed with it. `timeout`: seconds for a connection, and again for an answer;
    None where whoever asks gives up by itself.

    One more caller than there are connections waits for one as long. Nothing is tried twice: whoever asks decides what
    a failure means. Raises ValueError for a malformed URL.
    """
    return FinishingRedis.from_pool(_connections(url, timeout))


def clients(url: str, number: int) -> tuple[list[Redis], Callable[[], Awaitable[None]]]:
    """Clients that share a pool, without a timeout, and what closes it; each finishes what it has begun when it is
    closed. As `connect`."""
    pool = _connections(url, None)
    return [FinishingRedis(connection_pool=pool) for _ in range(number)], pool.aclose


def _connections(url: str, timeout: float | None) -> Connections:
    return Connections.from_url(
        url,
        max_connections=CONNECTIONS,
        patience=timeout,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        # Notices of a managed cloud service; asking for them costs a round trip per connection.
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )

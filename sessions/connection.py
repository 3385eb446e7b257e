"""Connections to Redis that fail fast: left to its defaults, the client waits a minute for a server that is frozen."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import ConnectionError as ConnectionLost
from redis.maint_notifications import MaintNotificationsConfig

from sessions.pool import Connections

CONNECTIONS = 128
CLIENT = DriverInfo()  # reads the client's version from a file, which it would for each connection
FINISHING = 1.0  # seconds that a connection may take once nobody waits for it


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
        pool = self.connection_pool
        connection = pool.at_hand() or await pool.turn()
        asking: Coroutine[Any, Any, Any] = self._ask(connection, args, options)
        if pool.is_made(connection):
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

    async def _ask(self, given: AbstractConnection, command: tuple[Any, ...], options: dict[str, Any]) -> Any:
        connection: Any = await self.connection_pool.connected(given)
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
        driver_info=CLIENT,
        # Notices of a managed cloud service; asking for them costs a round trip per connection.
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )

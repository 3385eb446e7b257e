"""A pool of connections to Redis that makes do with those that it gets.

A server may take fewer than we would make (`maxclients`), or this process may have no more files. Where one cannot be
made beside others, who wanted it waits for one of those, before all who wait already; and for a while no more are made
than there are. Then one is tried, and one more for each that is made.

The client's own pool that waits takes two locks and several events for each command, a tenth of all that a request
costs the gateway.
"""

import asyncio
import logging
import math
import time
from collections import deque
from contextlib import suppress
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError

SCARCE = 1.0  # seconds after which one more is tried
TELL_AGAIN = 60.0  # seconds

logger = logging.getLogger(__name__)


class Connections(ConnectionPool):
    """Hands out the connection that was used last. Who finds none free waits for one, the first the longest.

    Nobody waits while there is one that is free, or room for one more.
    """

    def __init__(self, patience: float | None = None, **options: Any) -> None:
        """`patience`: seconds to wait for a connection; None for as long as it takes."""
        super().__init__(**options)
        self._patience = patience
        self._idle: list[AbstractConnection] = []
        self._used: set[AbstractConnection] = set()  # those that are being made, too
        self._made: set[AbstractConnection] = set()  # of all of these
        self._waiting: deque[asyncio.Future[AbstractConnection | Exception]] = deque()
        self._most: int = self.max_connections  # for now
        self._once_more: asyncio.TimerHandle | None = None
        self._told = -math.inf  # monotonic seconds

    def at_hand(self) -> AbstractConnection | None:
        """One for `connected`, or None where `turn` is to be waited for."""
        if self._idle:
            connection = self._idle.pop()
        elif self._room:
            connection = self.make_connection()  # type: ignore[no-untyped-call]
        else:
            return None
        self._used.add(connection)
        return connection

    async def turn(self, first: bool = False) -> AbstractConnection:
        """One for `connected`, when there is one; `first`: before all who wait already.

        Raises redis.exceptions.ConnectionError where none is free in time, and none can be made any more.
        """
        waiter = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if first else self._waiting.append)(waiter)
        try:
            async with asyncio.timeout(self._patience):
                found: AbstractConnection | Exception = await waiter
        except BaseException as error:
            if waiter.cancelled():
                with suppress(ValueError):  # it may have been passed over already
                    self._waiting.remove(waiter)
            elif isinstance(given := waiter.result(), AbstractConnection):
                await self.release(given)
            if isinstance(error, TimeoutError):
                raise ConnectionLost("no connection was free in time") from None
            raise
        if isinstance(found, Exception):
            raise found
        return found

    def is_made(self, connection: AbstractConnection) -> bool:
        """Whether a server has taken it; it may be lost since."""
        return connection in self._made

    async def connected(self, connection: AbstractConnection) -> AbstractConnection:
        """That one, or another one, ready to be asked. Raises RedisError or OSError where none can be made."""
        while True:
            try:
                await self.ensure_connection(connection)
            except (RedisError, OSError) as error:
                await connection.disconnect(nowait=True)
                if not self._others_than(connection, error):
                    raise
                connection = self.at_hand() or await self.turn(first=True)
            except BaseException:
                await connection.disconnect(nowait=True)  # nobody knows how far it was
                await self.release(connection)
                raise
            else:
                if connection not in self._made:
                    self._grow(connection)
                return connection

    async def get_connection(self, command_name: object = None, *keys: object, **options: object) -> Any:
        """As `turn` and `connected`."""
        return await self.connected(self.at_hand() or await self.turn())

    async def release(self, connection: AbstractConnection) -> None:
        if not connection.is_connected or connection not in self._made:
            self._used.discard(connection)
            self._made.discard(connection)
            self._admit()
        elif not self._give(connection):
            self._used.discard(connection)
            self._idle.append(connection)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        if self._once_more is not None:
            self._once_more.cancel()
            self._once_more = None
        ours = [*self._idle, *(self._used if inuse_connections else ())]
        await asyncio.gather(*(each.disconnect() for each in ours), return_exceptions=True)

    @property
    def _room(self) -> bool:
        return len(self._used) + len(self._idle) < self._most

    def _give(self, connection: AbstractConnection) -> bool:
        """To who has waited the longest, if anybody."""
        while self._waiting:
            if not (waiter := self._waiting.popleft()).done():
                waiter.set_result(connection)
                return True
        return False

    def _admit(self) -> None:
        """Those who wait, as far as there is room."""
        while self._room and self._waiting:
            connection = self.make_connection()  # type: ignore[no-untyped-call]
            if self._give(connection):
                self._used.add(connection)

    def _grow(self, connection: AbstractConnection) -> None:
        """It is made; there may be room for one more."""
        self._made.add(connection)
        if self._most < self.max_connections:
            self._most += 1
            self._admit()

    def _others_than(self, connection: AbstractConnection, error: Exception) -> bool:
        """Whether there are others to wait for when this one could not be made. If not, all who wait are told."""
        self._used.discard(connection)
        self._made.discard(connection)
        if not self._used and not self._idle:
            self._most = self.max_connections
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(ConnectionLost(f"{error or type(error).__name__}"))
            self._waiting.clear()
            return False
        self._most = len(self._used) + len(self._idle)
        if self._once_more is None:
            self._once_more = asyncio.get_running_loop().call_later(SCARCE, self._try_once_more)
        if any(each.is_connected for each in self._made):
            self._tell(error)
        return True

    def _try_once_more(self) -> None:
        self._once_more = None
        self._most = min(self._most + 1, self.max_connections)
        self._admit()

    def _tell(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._told >= TELL_AGAIN:
            self._told = now
            logger.warning(
                "Redis: no further connection can be made (%s): questions wait for those there are. If it lasts,"
                " `maxclients` of the server, or the files that this process may open, are fewer than it could use.",
                error,
            )

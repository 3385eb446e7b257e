"""Connections to Redis that fail fast: left to its defaults, the client waits a minute for a server that is frozen."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

CONNECTIONS = 64
FINISHING = 1.0  # seconds that a connection may take once nobody waits for it


class FinishingPool(BlockingConnectionPool):
    """Finishes a connection that its first user has no time to wait for, so that the next one has it.

    Making one takes several answers of the server, and whoever is in a hurry waits for hardly more than one: a server
    some way off would never be used.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._finishing: set[asyncio.Future[AbstractConnection]] = set()
        self._returning: set[asyncio.Task[None]] = set()

    async def get_connection(
        self, command_name: Any = None, *keys: Any, **options: Any
    ) -> AbstractConnection:
        taking: Coroutine[Any, Any, AbstractConnection] = super().get_connection()  # type: ignore[no-untyped-call]
        if self._available_connections and self._available_connections[-1].is_connected:
            return await taking
        making = asyncio.ensure_future(taking)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._finish(making)
            raise

    async def disconnect(self, inuse_connections: bool = True) -> None:
        for making in self._finishing:
            making.cancel()
        await asyncio.gather(*self._finishing, *self._returning, return_exceptions=True)
        await super().disconnect(inuse_connections)

    def _finish(self, making: asyncio.Future[AbstractConnection]) -> None:
        self._finishing.add(making)
        late = making.get_loop().call_later(FINISHING, making.cancel)

        def finished(_: asyncio.Future[AbstractConnection]) -> None:
            late.cancel()
            self._finishing.discard(making)
            if not making.cancelled() and making.exception() is None:
                returning = asyncio.ensure_future(self.release(making.result()))
                self._returning.add(returning)
                returning.add_done_callback(self._returning.discard)

        making.add_done_callback(finished)


def connect(url: str, timeout: float | None) -> Redis:
    """A client with a pool of its own, closed with it. `timeout`: seconds for a connection, and again for an answer;
    None where whoever asks gives up by itself.

    One more caller than there are connections waits for one as long, where the client's own default would raise.
    Nothing is tried twice: whoever asks decides what a failure means. Raises ValueError for a malformed URL.
    """
    return Redis.from_pool(
        FinishingPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=timeout,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            # Notices of a managed cloud service; asking for them costs a round trip per connection.
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
    )

"""Connections to Redis that fail fast: left to its defaults, the client waits a minute for a server that is frozen."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

CONNECTIONS = 64
FINISHING = 1.0  # seconds that a connection may take once nobody waits for it


class FinishingRedis(Redis):
    """Finishes a connection that its first user has no time to wait for, so that the next one has it, and the first
    answer over it: a connection whose command is given up is lost.

    Making one takes several answers of the server, and whoever is in a hurry waits for hardly more than one: a server
    some way off would never be used.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._finishing: set[asyncio.Future[Any]] = set()

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        asking: Coroutine[Any, Any, Any] = super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        ready = self.connection_pool._available_connections
        if ready and ready[-1].is_connected:
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

    def _finish(self, first: asyncio.Future[Any]) -> None:
        self._finishing.add(first)
        late = first.get_loop().call_later(FINISHING, first.cancel)

        def finished(_: asyncio.Future[Any]) -> None:
            late.cancel()
            self._finishing.discard(first)
            if not first.cancelled():
                first.exception()  # nobody is left to hear of it

        first.add_done_callback(finished)


def connect(url: str, timeout: float | None) -> Redis:
    """A client with a pool of its own, closed with it. `timeout`: seconds for a connection, and again for an answer;
    None where whoever asks gives up by itself.

    One more caller than there are connections waits for one as long, where the client's own default would raise.
    Nothing is tried twice: whoever asks decides what a failure means. Raises ValueError for a malformed URL.
    """
    return FinishingRedis.from_pool(
        BlockingConnectionPool.from_url(
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

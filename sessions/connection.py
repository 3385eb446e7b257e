"""Connections to Redis that fail fast: left to its defaults, the client waits a minute for a server that is frozen."""

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

CONNECTIONS = 64


def connect(url: str, timeout: float | None) -> Redis:
    """A client with a pool of its own, closed with it. `timeout`: seconds for a connection, and again for an answer;
    None where whoever asks gives up by itself.

    One more caller than there are connections waits for one as long, where the client's own default would raise.
    Nothing is tried twice: whoever asks decides what a failure means. Raises ValueError for a malformed URL.
    """
    return Redis.from_pool(
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

"""Documents in Redis: shared by many hosts, and forgotten by Redis itself when their time is over."""

from redis.asyncio import Redis

from sessions.connection import twice
from sessions.redis import asking
from sessions.retention import Retention, milliseconds


class RedisDocuments:
    """A `DocumentStore`."""

    def __init__(self, client: Redis, retention: Retention) -> None:
        """`client` is closed with the store; `retention`: from the last `put` or `touch`."""
        self._client = client
        self._retention = retention

    async def put(self, tenant: str, document_id: str, data: bytes) -> None:
        with asking():
            life = milliseconds(self._retention, tenant)
            await twice(lambda: self._client.set(_key(tenant, document_id), data, px=life))

    async def touch(self, tenant: str, document_id: str) -> None:
        with asking():
            life = milliseconds(self._retention, tenant)
            await twice(lambda: self._client.pexpire(_key(tenant, document_id), life))

    async def get(self, tenant: str, document_id: str) -> bytes | None:
        with asking():
            found: bytes | None = await twice(lambda: self._client.get(_key(tenant, document_id)))
            return found

    async def delete(self, tenant: str, document_id: str) -> bool:
        with asking():
            return bool(await self._client.delete(_key(tenant, document_id)))

    async def close(self) -> None:
        await self._client.aclose()


def _key(tenant: str, document_id: str) -> str:
    return f"headrace:{{{tenant}}}:document:{document_id}"

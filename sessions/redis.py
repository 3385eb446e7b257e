"""Sessions in Redis: shared by many hosts. Redis itself forgets them when their time is over."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files

from redis.asyncio import Redis
from redis.exceptions import RedisError

from sessions import Session, SessionConflict, SessionNotFound, SessionStoreUnavailable, Turn, new_session_id
from sessions.connection import twice
from sessions.record import decode, encode, replaced
from sessions.retention import Retention, milliseconds

APPEND = files("sessions").joinpath("append.lua").read_text(encoding="utf-8")
REPLACE = files("sessions").joinpath("replace.lua").read_text(encoding="utf-8")
TRIES = 10  # to replace a turn while others replace its neighbours


class RedisSessions:
    """A `SessionStore`. A tenant's keys share one hash tag, so that a cluster holds them on one node."""

    def __init__(self, client: Redis, retention: Retention) -> None:
        """`client` is closed with the store; `retention`: from the last append."""
        self._client = client
        self._retention = retention
        # They load themselves again after the server has lost them.
        self._script = client.register_script(APPEND)
        self._replace = client.register_script(REPLACE)

    async def create(self, tenant: str, session_id: str | None = None) -> Session:
        session = Session(id=session_id or new_session_id())
        await self._append(tenant, session.id, (), "new")
        return session

    async def get(self, tenant: str, session_id: str) -> Session:
        return decode(tenant, session_id, await self._records(tenant, session_id))

    async def append(self, tenant: str, session_id: str, turns: tuple[Turn, ...], expected: int) -> None:
        await self._append(tenant, session_id, turns, str(expected))

    async def replace(
        self, tenant: str, session_id: str, place: int, before: Turn, after: Turn | None
    ) -> Session:
        for _ in range(TRIES):
            records = await self._records(tenant, session_id)
            number, data = replaced(tenant, session_id, records, place, before, after)
            with asking():
                outcome, *found = await twice(
                    partial(
                        self._replace,
                        keys=[_records_key(tenant, session_id)],
                        args=[number, records[number], data],
                    )
                )
            if outcome < 0:
                raise SessionNotFound(session_id)
            if outcome:
                return decode(tenant, session_id, found[0])
        raise SessionConflict(f"session {session_id}: lost the race to replace a turn {TRIES} times")

    async def list(self, tenant: str) -> tuple[str, ...]:
        with asking():
            async with self._client.pipeline() as both:
                both.time()
                both.zrange(_index_key(tenant), 0, -1, desc=True, withscores=True)
                (seconds, microseconds), used = await both.execute()
        expired = seconds * 1000 + microseconds / 1000 - milliseconds(self._retention, tenant)
        return tuple(session_id.decode() for session_id, at in used if at > expired)

    async def delete(self, tenant: str, session_id: str) -> None:
        with asking():
            async with self._client.pipeline() as both:
                both.delete(_records_key(tenant, session_id))
                both.zrem(_index_key(tenant), session_id)
                deleted, _ = await both.execute()
        if not deleted:
            raise SessionNotFound(session_id)

    async def close(self) -> None:
        await self._client.aclose()

    async def _records(self, tenant: str, session_id: str) -> Sequence[bytes]:
        with asking():
            key = _records_key(tenant, session_id)
            records: Sequence[bytes] = await twice(lambda: self._client.lrange(key, 0, -1))
        if not records:
            raise SessionNotFound(session_id)
        return records

    async def _append(self, tenant: str, session_id: str, turns: tuple[Turn, ...], expected: str) -> None:
        keys = [_records_key(tenant, session_id), _index_key(tenant)]
        arguments: list[str | bytes | int] = [
            expected,
            encode(tenant, session_id, turns),
            session_id,
            milliseconds(self._retention, tenant),
        ]
        append = partial(self._script, keys=keys, args=arguments)
        with asking():
            outcome = await (twice(append) if expected == "new" else append())
        if outcome < 0:
            raise SessionNotFound(session_id)
        if outcome == 0:
            raise SessionConflict(f"session {session_id} does not have version {expected}")


@contextmanager
def asking() -> Iterator[None]:
    """Tells of any failure of Redis as SessionStoreUnavailable."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise SessionStoreUnavailable(f"Redis: {error or type(error).__name__}") from error


def _records_key(tenant: str, session_id: str) -> str:
    return f"headrace:{{{tenant}}}:session:{session_id}"


def _index_key(tenant: str) -> str:
    return f"headrace:{{{tenant}}}:sessions"

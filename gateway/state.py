"""Where limits and sessions live, as the configuration says: files of this host, or Redis for many."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from backends.breaker import Breaker
from gateway.config import State
from gateway.guard import FAILURES, PAUSE, Guard
from gateway.limits import LimitStore
from gateway.limits_guard import GuardedLimits
from gateway.limits_redis import RedisLimits
from gateway.limits_sqlite import SqliteLimits
from gateway.pulse import Pulse
from gateway.sessions_guard import GuardedDocuments, GuardedSessions
from sessions import SessionStore
from sessions.address import fault_of
from sessions.connection import clients, connect
from sessions.documents import DocumentStore
from sessions.documents_redis import RedisDocuments
from sessions.documents_sqlite import SqliteDocuments
from sessions.redis import RedisSessions
from sessions.retention import Retention
from sessions.sqlite import SqliteSessions

GOODBYE = 2.0  # seconds to close a store
HEART = "headrace:heart"  # written to find out how a server is: one that is full, or a replica, still answers a ping


def redis_url(state: State) -> str | None:
    """None where files of this host hold the state. Raises ValueError naming a variable without a URL that is one."""
    if state.redis_env is None:
        return state.redis
    url = os.environ.get(state.redis_env, "")
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError(f"state.redis_env: the variable {state.redis_env} holds no redis:// URL")
    if (fault := fault_of(url)) is not None:
        raise ValueError(f"state.redis_env: {state.redis_env}: {fault}")
    return url


@dataclass(frozen=True, kw_only=True)
class Stores:
    limits: LimitStore
    sessions: SessionStore
    documents: DocumentStore
    pulse: Pulse | None = None  # of the server that they are in, where they are in one
    hang_up: Callable[[], Awaitable[None]] | None = None  # closes what they share

    def greet(self) -> None:
        """Begin to connect, since the first question takes longer than an answer may: it is no silence."""
        if self.pulse is not None:
            self.pulse.feel()

    async def close(self) -> None:
        """All of them, whatever becomes of one."""
        async with AsyncExitStack() as stack:
            if self.hang_up is not None:
                stack.push_async_callback(_parted, self.hang_up)
            if self.pulse is not None:
                stack.push_async_callback(_parted, self.pulse.close)
            for store in (self.limits, self.sessions, self.documents):
                stack.push_async_callback(_parted, store.close)


async def _parted(close: Callable[[], Awaitable[None]]) -> None:
    """A silent server does not say goodbye, which under TLS it would be waited for."""
    with suppress(TimeoutError):
        async with asyncio.timeout(GOODBYE):
            await close()


def open_stores(state: State, retention: Retention, told: Callable[[bool], None] | None = None) -> Stores:
    """Nothing is opened before the first use, so that a store which is down does not keep a gateway from starting.

    `told`: whether a server answers that is asked how it is, as one is at the start, and where it fails or is slow;
    files are never asked. Raises ValueError as `redis_url`.
    """
    url = redis_url(state)
    return _files(Path(state.folder), retention) if url is None else _in_redis(url, retention, told)


def _files(folder: Path, retention: Retention) -> Stores:
    return Stores(
        limits=GuardedLimits(SqliteLimits(folder / "limits.sqlite")),
        sessions=SqliteSessions(folder / "sessions.sqlite", retention),
        documents=SqliteDocuments(folder / "responses.sqlite", retention),
    )


def _in_redis(url: str, retention: Retention, told: Callable[[bool], None] | None) -> Stores:
    """One server: what one of them finds of it holds for all, so that a request waits for it but once."""
    # No timeouts: the pulse tells a slow server from a gateway that was kept from reading.
    (limits, sessions, documents), hang_up = clients(url, 3)
    heart = connect(url, None)
    breaker = Breaker(failures=FAILURES, pause=PAUSE)

    def awake() -> None:
        breaker.alive()
        counted.awake()
        if told is not None:
            told(True)

    pulse = Pulse(
        partial(heart.set, HEART, "", px=1000),
        awake,
        heart.aclose,
        lost=None if told is None else partial(told, False),
    )
    guard = Guard(breaker, pulse)
    counted = GuardedLimits(RedisLimits(limits), guard)
    return Stores(
        limits=counted,
        sessions=GuardedSessions(RedisSessions(sessions, retention), guard),
        documents=GuardedDocuments(RedisDocuments(documents, retention), guard),
        pulse=pulse,
        hang_up=hang_up,
    )

"""Where limits and sessions live, as the configuration says: files of this host, or Redis for many."""

import os
from pathlib import Path

from gateway.config import State
from gateway.limits import LimitStore
from gateway.limits_guard import GuardedLimits
from gateway.limits_redis import RedisLimits
from gateway.limits_sqlite import SqliteLimits
from gateway.sessions_guard import GuardedDocuments, GuardedSessions
from sessions import SessionStore
from sessions.connection import connect
from sessions.documents import DocumentStore
from sessions.documents_redis import RedisDocuments
from sessions.documents_sqlite import SqliteDocuments
from sessions.redis import RedisSessions
from sessions.retention import Retention
from sessions.sqlite import SqliteSessions

LIMITS_TIMEOUT = 0.05  # seconds; every request waits for its reservation
SESSIONS_TIMEOUT = 0.5  # a history may be long


def redis_url(state: State) -> str | None:
    """None where files of this host hold the state. Raises ValueError naming a variable without a URL."""
    if state.redis_env is None:
        return state.redis
    url = os.environ.get(state.redis_env, "")
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError(f"state.redis_env: the variable {state.redis_env} holds no redis:// URL")
    return url


def open_limits(state: State) -> LimitStore:
    """Nothing is opened before the first use, so that a store which is down does not keep a gateway from starting."""
    if (url := redis_url(state)) is not None:
        return GuardedLimits(RedisLimits(connect(url, LIMITS_TIMEOUT)))
    return GuardedLimits(SqliteLimits(Path(state.folder) / "limits.sqlite"))


def open_sessions(state: State, retention: Retention) -> SessionStore:
    """As `open_limits`."""
    if (url := redis_url(state)) is not None:
        return GuardedSessions(RedisSessions(connect(url, SESSIONS_TIMEOUT), retention))
    return SqliteSessions(Path(state.folder) / "sessions.sqlite", retention)


def open_documents(state: State, retention: Retention) -> DocumentStore:
    """As `open_limits`."""
    if (url := redis_url(state)) is not None:
        return GuardedDocuments(RedisDocuments(connect(url, SESSIONS_TIMEOUT), retention))
    return SqliteDocuments(Path(state.folder) / "responses.sqlite", retention)

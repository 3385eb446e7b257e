"""Every implementation of the stores under one name, and a real Redis."""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from gateway.limits import LimitStore
from gateway.limits_guard import GuardedLimits
from gateway.limits_memory import MemoryLimits
from gateway.limits_redis import RedisLimits
from gateway.limits_sqlite import SqliteLimits
from sessions import SessionStore
from sessions.connection import connect
from sessions.redis import RedisSessions
from sessions.retention import always
from sessions.sqlite import SqliteSessions

PATIENT = 10.0  # seconds for an answer, since a busy machine is no fault of the store


class RedisServer:
    """A redis-server of the test's own, on a free port, without persistence. It can be frozen, killed and restarted."""

    def __init__(self) -> None:
        binary = shutil.which("redis-server")
        assert binary is not None, "redis-server is not installed; `make redis` installs it"
        self._binary = binary
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", tempfile.gettempdir()]
        memory_only = ["--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen([self._binary, *where, *memory_only], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while self.ask("PING") != "+PONG":
            assert time.monotonic() < deadline, "redis-server does not start"
            time.sleep(0.01)

    def ask(self, command: str) -> str | None:
        """The first line of the answer, None where nobody listens."""
        try:
            with (
                socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection,
                connection.makefile("rw", newline="\r\n") as file,
            ):
                file.write(command + "\r\n")
                file.flush()
                return file.readline().strip()
        except OSError:
            return None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.kill()


@pytest.fixture
def redis(shared_redis: RedisServer) -> RedisServer:
    """A running server that holds nothing; leave it running."""
    assert shared_redis.ask("FLUSHALL") == "+OK"
    return shared_redis


@pytest.fixture
def mortal_redis() -> Iterator[RedisServer]:
    """A server for this test alone, to be frozen or killed."""
    server = RedisServer()
    server.start()
    yield server
    server.kill()


class Clock:
    """A clock that stands still until it is told otherwise; in whole milliseconds, so that sums are exact."""

    def __init__(self) -> None:
        self.milliseconds = 1_000_000_000

    def __call__(self) -> float:
        return self.milliseconds / 1000


@pytest.fixture
def clock() -> Clock:
    return Clock()


OpenLimits = Callable[[], LimitStore]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def open_limits(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> OpenLimits:
    """Opens a store on this test's clock; all that one test opens see the same counts, but for memory."""
    if request.param == "memory":
        return lambda: MemoryLimits(clock, clock)
    if request.param == "sqlite":
        return lambda: GuardedLimits(SqliteLimits(tmp_path / "limits.sqlite", clock, clock))
    server: RedisServer = request.getfixturevalue("redis")
    return lambda: GuardedLimits(RedisLimits(connect(server.url, PATIENT), clock))


@pytest.fixture
async def limits(open_limits: OpenLimits) -> AsyncIterator[LimitStore]:
    store = open_limits()
    yield store
    if isinstance(store, MemoryLimits):
        store.check()
    await store.close()


OpenSessions = Callable[..., SessionStore]


@pytest.fixture(params=["sqlite", "redis"])
def open_sessions(request: pytest.FixtureRequest, tmp_path: Path) -> OpenSessions:
    """`open_sessions(ttl=seconds)`; all that one test opens hold the same sessions."""
    if request.param == "sqlite":
        return lambda ttl=60.0: SqliteSessions(tmp_path / "sessions.sqlite", always(ttl))
    server: RedisServer = request.getfixturevalue("redis")
    return lambda ttl=60.0: RedisSessions(connect(server.url, PATIENT), always(ttl))


@pytest.fixture
async def sessions(open_sessions: OpenSessions) -> AsyncIterator[SessionStore]:
    store = open_sessions()
    yield store
    await store.close()

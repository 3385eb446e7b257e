"""The real front door on a real socket, before a dispatcher that follows a script."""

import asyncio
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop
from starlette.types import Scope

from backends.backend import CallPiece, Delta, Finish, Usage
from classifier import Assessment
from gateway.archive import Archive
from gateway.config import Config, Engine, Key, Price, Tenant, Tier
from gateway.config import Server as Settings
from gateway.dashboard.overview import Overview
from gateway.dashboard.watch import Watch
from gateway.drain import Drain
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.front import build_front
from gateway.metrics import Metrics
from gateway.request import Answer, Card, Decision, Judged, Request, Route
from gateway.server import Server, bind
from sessions.documents_sqlite import SqliteDocuments
from sessions.retention import always
from sessions.sqlite import SqliteSessions

ANONYMOUS = Tenant(name="anonymous")
TENANTS = {
    "hr_tenant": Tenant(name="tenant", tiers=("7b",), priority=5),
    "hr_nightly": Tenant(name="nightly", traffic="batch"),
    "hr_admin": Tenant(name="admin", admin=True),
    "hr_keyed": Tenant(name="keyed", keys=(Key(prefix="hr_keyed", digest="0" * 64),)),
}
USAGE = Usage(prompt_tokens=12, completion_tokens=3, cached_tokens=8)


@dataclass(kw_only=True)
class Script:
    """What becomes of each request. Pauses are in seconds."""

    texts: Sequence[str] = ("Hel", "", "lo")
    calls: Sequence[tuple[CallPiece, ...]] = ()  # what deltas after the texts call
    finish: Finish | None = "stop"
    refusal: Exception | None = None  # raised instead of an answer
    wait: float = 0.0  # before the answer
    pause: float = 0.0  # before each delta after the first
    settling: float = 0.0  # what closing takes
    breakage: Exception | None = None  # raised after the texts, instead of a finish
    usage: Usage | None = USAGE
    stopped_by: str | None = None


class ScriptedDeltas:
    def __init__(self, dispatcher: "ScriptedDispatcher", script: Script) -> None:
        self._dispatcher = dispatcher
        self._script = script
        self._steps = self._play()
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        return await anext(self._steps)

    async def _play(self) -> AsyncIterator[Delta]:
        for number, text in enumerate(self._script.texts):
            if number:
                await asyncio.sleep(self._script.pause)
            self._dispatcher.pulled += 1
            yield Delta(text=text, tokens=1)
        for calls in self._script.calls:
            yield Delta(calls=calls, tokens=1)
        await asyncio.sleep(self._script.pause)
        if self._script.breakage is not None:
            raise self._script.breakage
        if self._script.finish is not None:
            yield Delta(
                finish=self._script.finish, usage=self._script.usage, stopped_by=self._script.stopped_by
            )

    async def remember(self) -> None:
        self._dispatcher.remembered += 1

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.sleep(self._script.settling)
            self._dispatcher.running -= 1
            self._dispatcher.closed += 1


@dataclass
class ScriptedDispatcher:
    """`running` counts answers that nobody has closed yet, `waiting` requests without an answer."""

    script: Script = field(default_factory=Script)
    requests: list[Request] = field(default_factory=list)
    ready: bool = True
    assessment: Assessment | None = None
    running: int = 0
    waiting: int = 0
    remembered: int = 0
    closed: int = 0
    pulled: int = 0

    async def run_all(self, requests: Sequence[Request]) -> Sequence[Answer]:
        return [await self.run(request) for request in requests]

    async def run(self, request: Request) -> Answer:
        self.requests.append(request)
        self.waiting += 1
        try:
            await asyncio.sleep(self.script.wait)
        finally:
            self.waiting -= 1
        if self.script.refusal is not None:
            raise self.script.refusal
        self.running += 1
        return Answer(
            id=request.id,
            created=1_700_000_000,
            tier="7b",
            route=Route(order=("7b",), reason="7b: requested", assessment=None),
            session=None,
            headers={"x-headrace-tier": "7b", "x-headrace-reason": "7b: requested"},
            deltas=ScriptedDeltas(self, self.script),
        )

    async def decide(self, request: Request) -> Decision:
        self.requests.append(request)
        route = Route(order=("7b", "70b"), reason="7b: p=0.90 >= 0.70", assessment=self.assessment)
        judged = Judged(why_not="there is no calibration")
        return Decision(
            route=route, judged=judged, prompt_tokens={"7b": 12, "70b": 12}, cached_tokens={"7b": 8, "70b": 0}
        )

    async def count(self, request: Request) -> int:
        self.requests.append(request)
        return 12

    def cards(self) -> tuple[Card, ...]:
        seven = Card(name="7b", models=("small",), context_length=2048, price=Price(output=0.1), ready=True)
        return seven, Card(
            name="70b", models=("large",), context_length=8192, price=Price(output=1.5), ready=self.ready
        )


@dataclass
class Front:
    """One running front door, in a thread with an event loop of its own."""

    port: int
    dispatcher: ScriptedDispatcher
    drain: Drain
    exchanges: list[Exchange]
    loop: asyncio.AbstractEventLoop
    server: Server
    stores: "Stores"

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def leave(self, patience: float) -> None:
        """Begin to drain; does not wait."""
        asyncio.run_coroutine_threadsafe(self.drain.leave(patience), self.loop)
        self.eventually(lambda: self.drain.leaving)

    def eventually(self, what: Callable[[], bool], within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while not what():
            assert time.monotonic() < deadline, "it did not come true in time"
            time.sleep(0.01)


def find_tenant(config: Config) -> Callable[[str | None], Tenant]:
    def find(key: str | None) -> Tenant:
        tenant = TENANTS.get(key or "", config.anonymous)
        if tenant is None:
            raise ApiError(401, "The API key is not known.", code="invalid_api_key")
        return tenant

    return find


def config_with(anonymous: Tenant | None = ANONYMOUS, **server: Any) -> Config:
    tiers = tuple(Tier(name=name, engines=(Engine(model=name),)) for name in ("7b", "70b"))
    aliases = {"org/big": "70b", "small": "7b"}
    return Config(tiers=tiers, anonymous=anonymous, aliases=aliases, server=Settings(**server))


class Stores:
    """What the gateway remembers, in real files of the test's own."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.metrics = Metrics(["7b", "70b"], {}, ["tenant"])
        self._documents = SqliteDocuments(Path(folder) / "responses.sqlite", always(60.0))
        self.sessions = SqliteSessions(Path(folder) / "sessions.sqlite", always(60.0))
        self.archive = Archive(self._documents, self.sessions, self.metrics)

    def spoil(self) -> None:
        """Before the first use: from then on no store can be read or written."""
        for name in ("responses", "sessions"):
            (self._folder / f"{name}.sqlite").write_text("This is no database. " * 100)

    async def close(self) -> None:
        await self._documents.close()
        await self.sessions.close()


@contextmanager
def serving(config: Config) -> Iterator[Front]:
    with tempfile.TemporaryDirectory() as folder:
        with serving_with(config, Stores(folder)) as front:
            yield front


@contextmanager
def serving_with(config: Config, stores: Stores) -> Iterator[Front]:
    dispatcher, drain, exchanges = ScriptedDispatcher(), Drain(), list[Exchange]()
    watch = Watch({})

    @contextmanager
    def observe(exchange: Exchange, scope: Scope) -> Iterator[None]:
        try:
            with watch.running(exchange):
                yield
        finally:
            exchanges.append(exchange)

    async def rendered() -> bytes:
        return b"# TYPE up gauge\nup 1\n"

    app = build_front(
        config,
        dispatcher,
        archive=stores.archive,
        find_tenant=find_tenant(config),
        drain=drain,
        metrics=rendered,
        overview=Overview(
            watch=watch,
            metrics=stores.metrics,
            tiers=(),
            tenants=lambda: [Tenant(name="tenant")],
            leaving=lambda: drain.leaving,
        ),
        observe=observe,
    )
    opened, loop = threading.Event(), uvloop.new_event_loop()
    server = Server(app, opened.set)
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(
            target=lambda: loop.run_until_complete(server.serve(sockets=[listener])), daemon=True
        )
        thread.start()
        assert opened.wait(60)
        yield Front(port, dispatcher, drain, exchanges, loop, server, stores)
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
        loop.run_until_complete(stores.close())
        loop.close()


Serve = Callable[..., AbstractContextManager[Front]]


@pytest.fixture(scope="session")
def serve() -> Serve:
    """`with serve(body_timeout=0.2) as front`: a front door with these settings of `Server`."""
    return lambda anonymous=ANONYMOUS, **server: serving(config_with(anonymous, **server))


@pytest.fixture
def front() -> Iterator[Front]:
    with serving(config_with()) as running:
        yield running

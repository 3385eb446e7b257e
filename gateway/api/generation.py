"""From a body to an answer on the wire, for every dialect that is answered by one text."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast, get_args

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from backends.backend import Delta, Unavailable
from backends.prompt import Prompt
from classifier import Task
from gateway.api import ledger
from gateway.api.dialect import Body, Chunk, Dialect, Ending, Rendering, finish_of
from gateway.api.sse import EventStream, keep_alive
from gateway.api.strictjson import invalid
from gateway.config import Server, Tenant
from gateway.drain import Drain
from gateway.errors import ApiError, ClientGone, as_api_error
from gateway.exchange import Exchange, exchange_of
from gateway.request import Answer, Card, Decision, Endpoint, Request
from gateway.several import as_one
from gateway.watching import disconnected, watched

logger = logging.getLogger(__name__)

LARGE_BODY = 64 * 1024  # bytes; decoding more would be felt by other requests, so a thread does it
TIMEOUT_HEADER = "x-headrace-timeout-ms"
TRACE_HEADER = "x-headrace-trace"
TASK_HEADER = "x-headrace-task"


class Dispatches(Protocol):
    """What the front door needs of `gateway.dispatch.Dispatcher`."""

    async def run_all(self, requests: Sequence[Request]) -> Sequence[Answer]: ...

    async def decide(self, request: Request) -> Decision: ...

    async def count(self, request: Request) -> int: ...

    def cards(self) -> Sequence[Card]: ...


B = TypeVar("B", bound=Body)
R = TypeVar("R", bound=Rendering)
T = TypeVar("T")


@dataclass(slots=True)
class _Call(Generic[R]):
    exchange: Exchange
    requests: Sequence[Request]
    rendering: R
    ledger: bool  # whether the client wants it told
    kept: bool = False

    @property
    def request(self) -> Request:
        return self.requests[0]

    async def close(self) -> None:
        """Settle the answer, and abort it if it still runs. Idempotent."""
        if self.exchange.answer is not None:
            await self.exchange.answer.deltas.aclose()


class Generation(Generic[B, R]):
    """The endpoint of one dialect, as an ASGI application: it has to watch the client while the model runs."""

    def __init__(self, dialect: Dialect[B, R], dispatcher: Dispatches, server: Server, drain: Drain) -> None:
        self._dialect = dialect
        self._dispatcher = dispatcher
        self._server = server
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        exchange = exchange_of(scope)
        body, requests, rendering = await asked(self._dialect, http, self._server)
        exchange.requests = tuple(requests)
        call = _Call(exchange, exchange.requests, rendering, ledger.wanted(exchange.headers))
        try:
            if body.stream:
                await self._streamed(call, scope, receive, send)
            else:
                response = await self._whole(call, scope, receive)
                await response(scope, receive, send)
            # The loop sends what was written when it has its turn, and looks at later requests after ours.
            await asyncio.sleep(0)
        finally:
            await call.close()

    async def _whole(self, call: _Call[R], scope: Scope, receive: Receive) -> Response:
        answer, whole = await watched(self._told(call), disconnected(scope, receive), self._drain.cut)
        await self._stored(answer, call)
        return Response(
            msgspec.json.encode(_with_ledger(call, whole)),
            headers=answer.headers,
            media_type="application/json",
        )

    async def _told(self, call: _Call[R]) -> tuple[Answer, Chunk]:
        answer = await self._answer(call)
        told = [delta async for delta in answer.deltas]
        for delta in told:
            finish_of(delta)
        ending = _ending(told[-1] if told else None)
        call.exchange.usage = ending.usage
        return answer, call.rendering.whole(answer, told, ending)

    async def _streamed(self, call: _Call[R], scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventStream(send, self._dialect.typed)
        quiet = keep_alive(stream, self._server.keepalive_after, {"x-headrace-tier": "pending"})
        try:
            answer, closing = await watched(
                self._stream(call, stream), disconnected(scope, receive), self._drain.cut, quiet
            )
            await self._stored(answer, call)
            *others, last = [*closing, *call.rendering.farewell()]
            await stream.done([*others, _with_ledger(call, last)])
        except Exception as error:
            await call.close()
            if isinstance(error, ClientGone):
                await self._keep(call)
            if isinstance(error, ClientGone) or not stream.started:
                raise
            told = call.exchange.error = as_api_error(error)
            if told.status == 500:
                logger.error("request %s failed in mid-stream", call.request.id, exc_info=error)
            events = call.rendering.broken(told)
            await self._keep(call)
            await stream.broken(events)

    async def _stream(self, call: _Call[R], stream: EventStream) -> tuple[Answer, Sequence[Chunk]]:
        """All but the events by which a client knows that this was all; returns them."""
        answer = await self._answer(call)
        await stream.start(answer.headers)
        stream.keep(call.rendering.opening(answer))  # its first delta is here, so something follows
        last: Delta | None = None
        async for last in answer.deltas:
            if (ready := call.rendering.ready(last)) is not None:
                await stream.event(ready, more=last.more)
                continue
            ended = finish_of(last) is not None and last.usage is None
            if last.text or last.calls or last.scores or last.prompt or ended:
                await stream.events(call.rendering.piece(last))
        ending = _ending(last)
        call.exchange.usage = ending.usage
        return answer, call.rendering.closing(ending)

    async def _stored(self, answer: Answer, call: _Call[R]) -> None:
        """What a client may go on from once it has the end of its answer, and what is told in that end."""
        await answer.deltas.remember()
        if call.ledger:
            await call.close()
        await self._keep(call)

    async def _keep(self, call: _Call[R]) -> None:
        if not call.kept:
            call.kept = True
            await self._dialect.keep(call.request, call.rendering)

    async def _answer(self, call: _Call[R]) -> Answer:
        answers = await self._dispatcher.run_all(call.requests)
        answer = call.exchange.answer = as_one(answers, call.request.n)
        call.exchange.first_text = call.exchange.seconds
        return answer


async def asked(dialect: Dialect[B, R], http: HttpRequest, server: Server) -> tuple[B, Sequence[Request], R]:
    """What a call asks: its body, the requests to be run, and how their answer will be told. Raises ApiError."""
    exchange = exchange_of(http.scope)
    body = await decoded(dialect.decode, await http.body())
    session = exchange.headers.get("x-session-id") or None
    if session is not None and not dialect.sessions:
        raise invalid("x-session-id", "this endpoint has conversations instead", "unsupported_parameter")
    prompt, rendering = await dialect.open(body, tenant_of(exchange))
    request = request_of(exchange, dialect.endpoint, body, prompt, session, exchange.headers, server)
    return body, dialect.requests(body, request, rendering), rendering


def _with_ledger(call: _Call[R], chunk: Chunk) -> Chunk:
    """Once the answer is settled, where the client wants it."""
    return {**chunk, ledger.FIELD: ledger.told(call.exchange.ledger)} if call.ledger else chunk


async def decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    """The body; a large one is decoded in a thread. Raises ApiError 400."""
    return await asyncio.to_thread(decode, data) if len(data) > LARGE_BODY else decode(data)


def tenant_of(exchange: Exchange) -> Tenant:
    assert exchange.tenant is not None  # no call passes the authentication without one
    return exchange.tenant


def request_of(
    exchange: Exchange,
    endpoint: Endpoint,
    body: Body,
    prompt: Prompt,
    session: str | None,
    headers: Mapping[str, str],
    server: Server,
) -> Request:
    """Raises ApiError 400 for a deadline or task that is none, 403 for a trace that is not this tenant's to ask for."""
    tenant = tenant_of(exchange)
    bare = Request(
        # A client may repeat its own id, on purpose too; leases and engines need one that nobody else has.
        id=f"{exchange.id}-{secrets.token_hex(4)}",
        endpoint=endpoint,
        tenant=tenant,
        model=body.model,
        prompt=prompt,
        session=session,
        timeout=_timeout(headers.get(TIMEOUT_HEADER), server.default_timeout),
        steps=_steps(headers.get(TRACE_HEADER), tenant),
        task=_task(headers.get(TASK_HEADER)),
        streamed=body.stream,
        traffic="batch" if body.service_tier == "flex" else tenant.traffic,
        priority=tenant.priority,
        ledger=exchange.ledger,
    )
    return body.sampled(bare)


def _ending(last: Delta | None) -> Ending:
    """How the answer ended. Raises Unavailable if it only stopped coming: that must not look like an end."""
    finish = None if last is None else finish_of(last)
    if last is None or finish is None or last.usage is None:
        raise Unavailable("the answer ended before it was complete", "upstream_eof")
    return Ending(index=last.index, finish=finish, usage=last.usage, stopped_by=last.stopped_by)


def _timeout(given: str | None, longest: float) -> float:
    """Seconds. A client can lower its deadline, not raise it."""
    if given is None:
        return longest
    if not (given.isascii() and given.isdigit() and len(given) <= 12 and int(given) > 0):
        raise invalid(TIMEOUT_HEADER, "must be a positive whole number of milliseconds")
    return min(longest, int(given) / 1000)


def _task(given: str | None) -> Task | None:
    """Engines draft as suits the kind of task; nothing else goes by it."""
    for task in get_args(Task):
        if given == task:
            return cast(Task, task)
    if given is not None:
        raise invalid(TASK_HEADER, f"must be one of {', '.join(get_args(Task))}")
    return None


def _steps(given: str | None, tenant: Tenant) -> bool:
    """Thousands of spans may come of it, so it is for operators: admins, and whoever needs no key on this machine."""
    if given is None:
        return False
    if given != "steps":
        raise invalid(TRACE_HEADER, "must be steps")
    if tenant.keys and not tenant.admin:
        raise ApiError(403, f"{TRACE_HEADER}: only an admin's key may ask for it", code="not_allowed")
    return True

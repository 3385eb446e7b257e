"""From a body to an answer on the wire, for every dialect that is answered by one text."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from backends.backend import Delta, Unavailable, Usage
from gateway.api import chat, completions
from gateway.api.chat import ChatBody, ChatRendering
from gateway.api.completions import CompletionBody, CompletionRendering
from gateway.api.rendering import Finish, Rendering
from gateway.api.sse import EventStream
from gateway.api.strictjson import invalid
from gateway.api.watching import disconnected, watched
from gateway.config import Server
from gateway.drain import Drain
from gateway.errors import ClientGone, as_api_error
from gateway.exchange import Exchange, exchange_of
from gateway.request import Answer, Card, Request

logger = logging.getLogger(__name__)

LARGE_BODY = 64 * 1024  # bytes; decoding more would be felt by other requests, so a thread does it
FLEX_PRIORITY = 1000  # what `service_tier: flex` adds
TIMEOUT_HEADER = "x-headrace-timeout-ms"

Body = ChatBody | CompletionBody


class Dispatches(Protocol):
    """What the front door needs of `gateway.dispatch.Dispatcher`."""

    async def run(self, request: Request) -> Answer: ...

    def cards(self) -> Sequence[Card]: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    endpoint: Literal["chat", "completions"]
    decode: Callable[[bytes], Body]
    rendering: type[Rendering]


CHAT = Dialect("chat", chat.decode, ChatRendering)
COMPLETIONS = Dialect("completions", completions.decode, CompletionRendering)


@dataclass(frozen=True, slots=True)
class _Call:
    exchange: Exchange
    body: Body
    request: Request


class Generation:
    """The endpoint of one dialect, as an ASGI application: it has to watch the client while the model runs."""

    def __init__(self, dialect: Dialect, dispatcher: Dispatches, server: Server, drain: Drain) -> None:
        self._dialect = dialect
        self._dispatcher = dispatcher
        self._server = server
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        body = await self._decode(await http.body())
        exchange = exchange_of(scope)
        call = _Call(exchange, body, self._request(exchange, body, http.headers))
        if body.stream:
            await self._streamed(call, receive, send)
        else:
            whole = await watched(self._whole(call), disconnected(receive), self._drain.cut())
            await whole(scope, receive, send)

    async def _decode(self, data: bytes) -> Body:
        if len(data) > LARGE_BODY:
            return await asyncio.to_thread(self._dialect.decode, data)
        return self._dialect.decode(data)

    def _request(self, exchange: Exchange, body: Body, headers: Headers) -> Request:
        tenant = exchange.tenant
        assert tenant is not None  # no call passes the authentication without one
        return Request(
            # A client may repeat its own id, on purpose too; leases and engines need one that nobody else has.
            id=f"{exchange.id}-{secrets.token_hex(4)}",
            endpoint=self._dialect.endpoint,
            tenant=tenant,
            model=body.model,
            prompt=body.to_prompt(),
            max_tokens=body.most_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=max(0, body.top_k),
            seed=body.unsigned_seed,
            stop=body.stops,
            stop_token_ids=tuple(body.stop_token_ids),
            ignore_eos=body.ignore_eos,
            session=headers.get("x-session-id") or None,
            timeout=_timeout(headers.get(TIMEOUT_HEADER), self._server.default_timeout),
            priority=tenant.priority + (FLEX_PRIORITY if body.service_tier == "flex" else 0),
        )

    async def _whole(self, call: _Call) -> Response:
        answer = await self._answer(call)
        texts: list[str] = []
        last: Delta | None = None
        async with aclosing(answer.deltas) as deltas:
            async for last in deltas:
                texts.append(last.text)
        finish, usage = _ending(last)
        call.exchange.usage = usage
        whole = self._rendering(call, answer).whole("".join(texts), finish, usage)
        return Response(msgspec.json.encode(whole), headers=answer.headers, media_type="application/json")

    async def _streamed(self, call: _Call, receive: Receive, send: Send) -> None:
        stream = EventStream(send)
        quiet = stream.keep_alive(self._server.keepalive_after, {"x-headrace-tier": "pending"})
        try:
            await watched(self._stream(call, stream), disconnected(receive), self._drain.cut(), quiet)
        except ClientGone:
            raise
        except Exception as error:
            if not stream.started:
                raise
            told = call.exchange.error = as_api_error(error)
            if told.status == 500:
                logger.error("request %s failed in mid-stream", call.request.id, exc_info=error)
            await stream.error(told)

    async def _stream(self, call: _Call, stream: EventStream) -> None:
        """[DONE] comes once the answer is settled and remembered: the next turn may follow at once."""
        answer = await self._answer(call)
        async with aclosing(answer.deltas) as deltas:
            rendering = self._rendering(call, answer)
            await stream.start(answer.headers)
            if (opening := rendering.opening()) is not None:
                await stream.event(opening)
            last: Delta | None = None
            async for last in deltas:
                if last.text:
                    await stream.event(rendering.piece(last.text))
            finish, call.exchange.usage = _ending(last)
            await stream.event(rendering.closing(finish))
            if call.body.include_usage:
                await stream.event(rendering.usage(call.exchange.usage))
        await stream.done()

    async def _answer(self, call: _Call) -> Answer:
        answer = call.exchange.answer = await self._dispatcher.run(call.request)
        call.exchange.first_text = call.exchange.seconds
        return answer

    def _rendering(self, call: _Call, answer: Answer) -> Rendering:
        return self._dialect.rendering(answer, call.body.include_usage)


def _ending(last: Delta | None) -> tuple[Finish, Usage]:
    """How the answer ended. Raises Unavailable if it only stopped coming: that must not look like an end."""
    if last is None or last.finish is None or last.usage is None:
        raise Unavailable("the answer ended before it was complete", "upstream_eof")
    if last.finish != "stop" and last.finish != "length":
        raise Unavailable(f"the engine ended the answer: {last.finish}", "engine_error")
    return last.finish, last.usage


def _timeout(given: str | None, longest: float) -> float:
    """Seconds. A client can lower its deadline, not raise it."""
    if given is None:
        return longest
    if not (given.isascii() and given.isdigit() and len(given) <= 12 and int(given) > 0):
        raise invalid(TIMEOUT_HEADER, "must be a positive whole number of milliseconds")
    return min(longest, int(given) / 1000)

"""The layers around every endpoint, as pure ASGI, from the outside in:

Exchanges        gives the call its id and reports what became of it
Errors           turns whatever is raised into an error object
Admission        takes nothing new while the gateway leaves
Authentication   no path but the open ones without a tenant
Bodies           media type, size and time of a body

All of them decide on `scope["path"]`, as the router does; never on a URL that a Host header had a part in. What that
header says counts only where no key is asked for.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.config import Server, Tenant
from gateway.credentials import challenge, key_of
from gateway.drain import Drain
from gateway.endpoints import OPEN, PROBES, named
from gateway.errors import (
    CLIENT_GONE,
    ApiError,
    ClientGone,
    anthropic_error,
    anthropic_status,
    as_api_error,
    openai_error,
)
from gateway.exchange import Exchange, Observe, attach, exchange_of, headers_of
from gateway.hosts import is_of_this_machine

logger = logging.getLogger(__name__)

CHARSET = re.compile(r"\bcharset\s*=\s*\"?([^\";\s]*)")
REQUEST_ID = re.compile(r"[\w-]{1,64}", re.ASCII)

FindTenant = Callable[[str | None], Tenant]


def layers(server: Server, find_tenant: FindTenant, drain: Drain, observe: Observe) -> Sequence[Middleware]:
    """All of them, the outermost first. `find_tenant` takes a key or None and raises ApiError 401."""
    return (
        Middleware(Exchanges, observe=observe),
        Middleware(Errors),
        Middleware(Admission, drain=drain),
        Middleware(Authentication, find_tenant=find_tenant),
        Middleware(Bodies, max_bytes=server.max_body_bytes, seconds=server.body_timeout),
    )


class Exchanges:
    """Accepts a client's x-request-id if it is a plain word, makes one otherwise, and always answers it."""

    def __init__(self, app: ASGIApp, observe: Observe) -> None:
        self._app = app
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = headers_of(scope)
        given = headers.get("x-request-id", "")
        endpoint, route = named(scope["path"])
        exchange = Exchange(
            id=given if REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}",
            endpoint=endpoint,
            route=route,
            headers=headers,
        )
        attach(scope, exchange)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                own = exchange.id.encode("ascii")
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", own)]
                if of_anthropic(scope["path"]):
                    message["headers"].append((b"request-id", own))
            await send(message)

        with self._observe(exchange, scope):
            await self._app(scope, receive, send_with_id)


class Errors:
    """The last to see an exception: the client gets an error object, the log a traceback if it was unforeseen."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        exchange = exchange_of(scope)
        try:
            await self._app(scope, receive, watched_send)
        except (ClientGone, ClientDisconnect):
            exchange.status = CLIENT_GONE
        except Exception as error:
            exchange.error = as_api_error(of_router(error, scope["method"]))
            if started:
                raise  # the server logs it and closes: what was sent cannot be taken for complete
            if exchange.error.status == 500:
                logger.error("request %s failed", exchange.id, exc_info=error)
            if of_anthropic(scope["path"]):
                told = {**anthropic_error(exchange.error), "request_id": exchange.id}
                await _send_error(exchange.error, anthropic_status(exchange.error), told, send)
            else:
                await _send_error(exchange.error, exchange.error.status, openai_error(exchange.error), send)


def of_anthropic(path: str) -> bool:
    """Whether it is of the dialect whose clients read other errors and headers, also where there is nothing."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


async def _send_error(error: ApiError, status: int, told: Mapping[str, Any], send: Send) -> None:
    body = msgspec.json.encode(told)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **error.headers,
    }
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


class Admission:
    """Counts the calls that run. Probes and metrics are answered to the end."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            return await self._app(scope, receive, send)
        with self._drain.taken():
            await self._app(scope, receive, send)


class Authentication:
    """A key, from wherever `gateway.credentials` finds it, to a tenant.

    Closed by default, for paths that do not exist too.
    """

    def __init__(self, app: ASGIApp, find_tenant: FindTenant) -> None:
        self._app = app
        self._find_tenant = find_tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            exchange = exchange_of(scope)
            exchange.tenant = self._find(scope["path"], exchange.headers)
        await self._app(scope, receive, send)

    def _find(self, path: str, headers: Mapping[str, str]) -> Tenant:
        try:
            tenant = self._find_tenant(key_of(path, headers))
        except ApiError as error:
            error.headers |= challenge(path)
            raise
        if not tenant.keys and not is_of_this_machine(headers.get("host", "")):
            raise ApiError(
                403,
                "host: without a key, only requests to localhost or to an address in figures are taken.",
                code="host_not_allowed",
            )
        return tenant


class Bodies:
    """Refuses a body before it is read where that is possible, and as soon as it is too long or too late."""

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = exchange_of(scope).headers
        self._check_framing(headers)
        if scope["method"] == "POST":
            _check_media_type(headers)
        await self._app(scope, self._bounded(receive), send)

    def _check_framing(self, headers: Mapping[str, str]) -> None:
        length = headers.get("content-length")
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.strip().lower() != "chunked":
            raise _broken(400, "transfer-encoding: must be chunked", "invalid_framing")
        if length is not None and coding is not None:
            # Two servers may disagree where such a request ends (RFC 9112, 6.3), so nothing after it is read.
            raise _broken(400, "content-length: not allowed beside transfer-encoding", "invalid_framing")
        if length is not None and int(length) > self._max_bytes:
            raise self._too_large()

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The body is longer than {self._max_bytes} bytes.", code="request_too_large")

    def _bounded(self, receive: Receive) -> Receive:
        """The same messages; past the end of the body it is `receive` alone, which then tells of a disconnect."""
        deadline = asyncio.get_running_loop().time() + self._seconds
        received, complete = 0, False

        async def bounded() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                reason = f"The body did not arrive within {self._seconds:g} s."
                raise _broken(408, reason, "request_timeout") from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > self._max_bytes:
                raise self._too_large()
            return message

        return bounded


def _check_media_type(headers: Mapping[str, str]) -> None:
    """JSON is UTF-8 (RFC 8259, 8.1), and nothing is unpacked, since a small body may hold a large one."""
    media_type, _, parameters = headers.get("content-type", "").lower().partition(";")
    if media_type.strip() != "application/json":
        raise _unsupported("content-type: must be application/json")
    if (charset := CHARSET.search(parameters)) is not None and charset[1] not in ("utf-8", "utf8"):
        raise _unsupported("content-type: the charset must be utf-8")
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise _unsupported("content-encoding: bodies must not be compressed")


def _unsupported(message: str) -> ApiError:
    """With the one coding that is taken (RFC 9110, 15.5.16)."""
    return ApiError(415, message, code="unsupported_media_type", headers={"accept-encoding": "identity"})


def _broken(status: int, message: str, code: str) -> ApiError:
    """An error after which the connection cannot be used again."""
    return ApiError(status, message, code=code, headers={"connection": "close"})


def of_router(error: Exception, method: str) -> Exception:
    """What Starlette's router raises, in our words; anything else as it is."""
    if isinstance(error, HTTPException) and error.status_code == 404:
        return ApiError(404, "There is nothing at this path.", code="unknown_url")
    if isinstance(error, HTTPException) and error.status_code == 405:
        message = f"This path does not take {method}."
        return ApiError(405, message, code="method_not_allowed", headers=error.headers)
    return error

"""A replica behind an OpenAI-compatible server: vLLM, SGLang, TGI, LMDeploy, or any other.

The only module that knows httpx. Nothing of a client's request goes along but the prompt and the sampling: the headers
are ours, cookies are neither kept nor sent, redirects are not followed, and the environment's proxies and credentials
are ignored.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from http.cookiejar import DefaultCookiePolicy

import httpx
import msgspec

from backends.backend import (
    BackendError,
    DeadlineExceeded,
    Delta,
    Generation,
    Overloaded,
    Unavailable,
)
from backends.breaker import Breaker
from backends.remote_reply import Reply, failure
from backends.remote_request import KINDS, compose
from backends.sse import Event, EventParser, EventTooLarge
from backends.tokenizer import Tokenizer

MAX_EVENT = 1024 * 1024  # bytes
MAX_ANSWER = 64 * 1024 * 1024  # bytes of a whole stream
MAX_ERROR = 64 * 1024  # bytes of an error's body that are looked at
TAIL = 0.5  # seconds that a server has, after its last word, to report usage and end the stream
IDLE = 4.0  # seconds that a connection is kept for reuse; uvicorn closes its end after 5
WRITE_TIMEOUT = 10.0  # seconds
FOREVER = 24 * 3600.0  # seconds, where a generation has no deadline
OPERATOR_ERRORS = ("upstream_auth", "upstream_not_found")  # a server that answers so is not ill

_log = logging.getLogger(__name__)


class RemoteBackend:
    """One server. Any number of generations up to `max_in_flight` run at once, each on a connection of its own."""

    def __init__(
        self,
        *,
        name: str,
        url: str,
        model: str,
        kind: str,
        api_key: str | None,
        tokenizer: Tokenizer | None,
        context_length: int,
        connect_timeout: float,
        read_timeout: float,
        max_in_flight: int,
        breaker: Breaker | None = None,
    ) -> None:
        """`url`: up to and with the version, `http://host:port/v1`; `kind`: a key of `KINDS`.

        `connect_timeout` and `read_timeout` (between two chunks) are in seconds.
        """
        self._name = name
        self._url = url.rstrip("/")
        self._model = model
        self._kind = KINDS[kind]
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._max_in_flight = max_in_flight
        self._headers = {
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "user-agent": "headrace",
        }
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._timeout = httpx.Timeout(
            connect=connect_timeout, read=read_timeout, write=WRITE_TIMEOUT, pool=connect_timeout
        )
        self._breaker = breaker or Breaker()
        self._client: httpx.AsyncClient | None = None
        self._in_flight = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._tokenizer

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def available(self) -> bool:
        """False before `start`, while the breaker is open, and while `max_in_flight` generations run."""
        return self._client is not None and self._breaker.allows and self._in_flight < self._max_in_flight

    @property
    def tripped(self) -> bool:
        return self._breaker.open

    @property
    def recovering(self) -> bool:
        """Nobody here knows when a server comes back."""
        return False

    @property
    def in_flight(self) -> int:
        return self._in_flight

    async def start(self) -> None:
        """Look whether the server is there. Never raises: one that is down now is tried again when it is needed."""
        self._client = self._connect()
        try:
            async with self._client.stream(
                "GET", f"{self._url}/models", timeout=self._timeout.connect
            ) as answer:
                if answer.status_code in (401, 403):
                    _log.error("%s: the server refuses the gateway's key", self._name)
        except httpx.HTTPError as error:
            _log.warning("%s: the server cannot be reached: %s", self._name, type(error).__name__)
            self._breaker.trip()

    def _connect(self) -> httpx.AsyncClient:
        client = httpx.AsyncClient(
            headers=self._headers,
            timeout=self._timeout,
            limits=httpx.Limits(
                max_connections=self._max_in_flight,
                max_keepalive_connections=self._max_in_flight,
                keepalive_expiry=IDLE,
            ),
            follow_redirects=False,
            trust_env=False,
        )
        client.cookies.jar.set_policy(
            DefaultCookiePolicy(allowed_domains=[])
        )  # of one tenant, sent with another's
        return client

    async def close(self) -> None:
        """Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        """As `backends.backend.Backend`. Where the server reports no usage it is estimated from the text.

        Codes of Unavailable: upstream_unreachable, _timeout, _eof, _protocol, _too_large, _error, _auth, _not_found.
        """
        path, body = compose(self._kind, self._model, generation)
        reply = Reply(self._name, generation, repeats_stop=self._kind.repeats_stop)
        timeout = FOREVER if generation.timeout is None else generation.timeout
        deadline = asyncio.get_running_loop().time() + timeout
        with self._attempt(reply):
            request = self._request(path, body, generation)
            async with aclosing(self._events(request, reply, deadline)) as events:
                async for event in events:
                    if (delta := reply.take(event)) is not None:
                        self._breaker.alive()
                        yield delta
            last = reply.last()
            self._breaker.succeeded()
            yield last

    @contextmanager
    def _attempt(self, reply: Reply) -> Iterator[None]:
        """Counts a generation, and tells the breaker what came of it."""
        if not self._breaker.allows:
            raise Unavailable(f"server {self._name} has failed and is left alone", "upstream_unreachable")
        if self._in_flight >= self._max_in_flight:
            raise Overloaded(f"server {self._name} has as many requests as it may have")
        trial = self._breaker.enter()
        self._in_flight += 1
        try:
            yield
        except BackendError as error:
            self._judge(error, reply)
            raise
        finally:
            self._in_flight -= 1
            self._breaker.leave(trial)

    def _judge(self, error: BackendError, reply: Reply) -> None:
        """A refusal is an answer too, and a long answer that hits a deadline no failure."""
        broken = isinstance(error, Unavailable) and error.code not in OPERATOR_ERRORS
        silent = isinstance(error, DeadlineExceeded) and not reply.begun
        if broken or silent:
            self._breaker.failed()
        else:
            self._breaker.alive()

    def _request(self, path: str, body: dict[str, object], generation: Generation) -> httpx.Request:
        headers = {"content-type": "application/json"}
        if generation.traceparent is not None:
            headers["traceparent"] = generation.traceparent
        return httpx.Request(
            "POST",
            self._url + path,
            content=msgspec.json.encode(body),
            headers=self._headers | headers,
            extensions={"timeout": self._timeout.as_dict()},
        )

    async def _events(
        self, request: httpx.Request, reply: Reply, deadline: float
    ) -> AsyncGenerator[Event, None]:
        """The events of the answer, until the stream ends. Closing it closes the connection."""
        parser, size, due = EventParser(MAX_EVENT), 0, deadline
        response = await self._send(request, deadline)
        try:
            await self._check(response)
            chunks = response.aiter_raw()
            while (chunk := await self._next(chunks, reply, due)) is not None:
                size += len(chunk)
                for event in self._parse(parser, chunk, size):
                    yield event
                if reply.finished and due == deadline:
                    due = min(deadline, asyncio.get_running_loop().time() + TAIL)
        finally:
            await response.aclose()

    async def _send(self, request: httpx.Request, deadline: float) -> httpx.Response:
        if self._client is None:
            raise Unavailable(f"server {self._name} is not connected", "upstream_unreachable")
        try:
            async with asyncio.timeout_at(deadline):
                return await self._client.send(request, stream=True)
        except TimeoutError:
            raise DeadlineExceeded("the request's time is used up") from None
        except httpx.HTTPError as error:
            raise self._broken(error) from error

    async def _check(self, response: httpx.Response) -> None:
        if response.status_code != 200:
            body = await self._error_body(response)
            raise failure(self._name, response.status_code, body, response.headers)
        type = response.headers.get("content-type", "")
        if not type.startswith("text/event-stream") or response.headers.get("content-encoding"):
            raise Unavailable(f"server {self._name} does not stream", "upstream_protocol")

    async def _error_body(self, response: httpx.Response) -> bytes:
        """As much as comes soon; it only helps to tell one refusal from another."""
        body = bytearray()
        with contextlib.suppress(TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(TAIL):
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > MAX_ERROR:
                        break
        return bytes(body)

    async def _next(self, chunks: AsyncIterator[bytes], reply: Reply, due: float) -> bytes | None:
        """None at the end. When all text is there, how a stream ends does not matter any more."""
        try:
            async with asyncio.timeout_at(due):
                return await anext(chunks, None)
        except TimeoutError:
            if not reply.finished:
                raise DeadlineExceeded("the request's time is used up") from None
        except httpx.HTTPError as error:
            if not reply.finished:
                raise self._broken(error) from error
        return None

    def _parse(self, parser: EventParser, chunk: bytes, size: int) -> list[Event]:
        try:
            if size > MAX_ANSWER:
                raise EventTooLarge(f"an answer of more than {MAX_ANSWER} bytes")
            return parser.feed(chunk)
        except EventTooLarge as error:
            raise Unavailable(f"server {self._name} sent {error}", "upstream_too_large") from error

    def _broken(self, error: httpx.HTTPError) -> BackendError:
        match error:
            case httpx.PoolTimeout():
                return Overloaded(f"server {self._name} has no free connection")
            case httpx.ConnectError() | httpx.ConnectTimeout():
                return Unavailable(f"server {self._name} cannot be reached", "upstream_unreachable")
            case httpx.TimeoutException():
                return Unavailable(f"server {self._name} stopped answering", "upstream_timeout")
        return Unavailable(f"server {self._name} broke the connection", "upstream_eof")

"""A replica behind an OpenAI-compatible server: vLLM, SGLang, TGI, LMDeploy, or any other.

The only module that knows httpx, beside the transport that it uses without TLS. Nothing of a client's request goes
along but the prompt and the sampling: the headers are ours, cookies are neither kept nor sent, redirects are not
followed, and the environment's proxies and credentials are ignored.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager

import httpx
import msgspec

from backends.backend import (
    BackendError,
    DeadlineExceeded,
    Delta,
    Generation,
    Overloaded,
    Rejected,
    Sampling,
    Unavailable,
    at_once,
)
from backends.breaker import Breaker
from backends.deadline import Deadline
from backends.http1 import Http1Transport
from backends.prompt import Prompt
from backends.remote_reply import Reply, failure
from backends.remote_request import KINDS, compose, refusal
from backends.sse import Event, EventParser, EventTooLarge
from backends.tokenizer import Tokenizer

MAX_EVENT = 1024 * 1024  # bytes
MAX_ANSWER = 64 * 1024 * 1024  # bytes of a whole stream
MAX_ERROR = 64 * 1024  # bytes of an error's body that are looked at
TAIL = 0.5  # seconds that a server has, after its last word, to report usage and end the stream
IDLE = 4.0  # seconds that a connection is kept for reuse; uvicorn closes its end after 5
WRITE_TIMEOUT = 10.0  # seconds
SILENCE = (
    10.0  # seconds without a word that speak against a server; a shorter deadline is the client's choice
)
FOREVER = 24 * 3600.0  # seconds, where a generation has no deadline
PATHS = ("/models", "/completions", "/chat/completions")
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
        self._urls = {path: httpx.URL(url.rstrip("/") + path) for path in PATHS}  # reading one is slow
        self._host = self._urls[PATHS[0]].netloc.decode("ascii")
        self._model = model
        self._kind = KINDS[kind]
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._max_in_flight = max_in_flight
        self.change(api_key, connect_timeout, read_timeout)
        self._breaker = breaker or Breaker()
        self._transport: httpx.AsyncBaseTransport | None = None
        self._in_flight = 0

    def change(self, api_key: str | None, connect_timeout: float, read_timeout: float) -> None:
        """From the next generation on; those that run end as they began."""
        self._headers = httpx.Headers({
            "host": self._host,
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "user-agent": "headrace",
        })  # fmt: skip
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._asking = self._headers.copy()
        self._asking["content-type"] = "application/json"
        self._timeout = httpx.Timeout(
            connect=connect_timeout, read=read_timeout, write=WRITE_TIMEOUT, pool=connect_timeout
        ).as_dict()

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
    def takes_tools(self) -> bool:
        """The server finds the calls; where its template is known, it must tell of tools."""
        told = self._tokenizer is None or self._tokenizer.tools.told
        return told and self._kind.tools

    def refusal(self, prompt: Prompt, sampling: Sampling) -> Rejected | None:
        return refusal(self._kind, prompt, sampling)

    @property
    def available(self) -> bool:
        """False before `start`, while the breaker is open, and while `max_in_flight` generations run."""
        return self._transport is not None and self._breaker.allows and self._in_flight < self._max_in_flight

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
        self._transport = self._connect()
        patience = httpx.Timeout(self._timeout["connect"]).as_dict()
        request = httpx.Request(
            "GET", self._urls["/models"], headers=self._headers, extensions={"timeout": patience}
        )
        try:
            answer = await self._transport.handle_async_request(request)
            if answer.status_code in (401, 403):
                _log.error("%s: the server refuses the gateway's key", self._name)
            await self._body(answer)
            await answer.aclose()
        except httpx.HTTPError as error:
            _log.warning("%s: the server cannot be reached: %s", self._name, type(error).__name__)
            self._breaker.trip()

    def _connect(self) -> httpx.AsyncBaseTransport:
        if self._urls["/models"].scheme == "http":
            return Http1Transport(IDLE)
        limits = httpx.Limits(
            max_connections=self._max_in_flight,
            max_keepalive_connections=self._max_in_flight,
            keepalive_expiry=IDLE,
        )
        return httpx.AsyncHTTPTransport(limits=limits, trust_env=False)

    async def close(self) -> None:
        """Idempotent."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        """As `backends.backend.Backend`. Where the server reports no usage it is estimated from the text.

        Codes of Unavailable: upstream_unreachable, _timeout, _eof, _protocol, _too_large, _error, _auth, _not_found.
        """
        path, body = compose(self._kind, self._model, generation)
        reply = Reply(self._name, generation, repeats_stop=self._kind.repeats_stop)
        with self._attempt(reply):
            parser, size = EventParser(MAX_EVENT), 0
            async with aclosing(self._pieces(path, body, generation, reply)) as pieces:
                async for piece in pieces:
                    size += len(piece)
                    events = self._parse(parser, piece, size)
                    for delta in at_once(reply.deltas(events)):
                        self._breaker.alive()
                        yield delta
            last = reply.last()
            self._breaker.succeeded()
            yield last

    async def warm(self, generation: Generation) -> bool:
        """Unsupported: no server's API computes a prompt without answering it."""
        return False

    @contextmanager
    def _attempt(self, reply: Reply) -> Iterator[None]:
        """Counts a generation, and tells the breaker what came of it."""
        if not self._breaker.allows:
            raise Unavailable(f"server {self._name} has failed and is left alone", "upstream_unreachable")
        if self._in_flight >= self._max_in_flight:
            raise Overloaded(f"server {self._name} has as many requests as it may have")
        trial = self._breaker.enter()
        self._in_flight += 1
        asked = time.monotonic()
        try:
            yield
        except BackendError as error:
            self._judge(error, reply, time.monotonic() - asked)
            raise
        finally:
            self._in_flight -= 1
            self._breaker.leave(trial)

    def _judge(self, error: BackendError, reply: Reply, waited: float) -> None:
        """A refusal is an answer too, and a long answer that hits a deadline no failure. Who was not waited for long
        tells nothing: or clients in a hurry could take a server away from everybody else."""
        silent = isinstance(error, DeadlineExceeded) and not reply.heard
        if silent and waited < SILENCE:
            return
        if silent or (isinstance(error, Unavailable) and error.code not in OPERATOR_ERRORS):
            self._breaker.failed()
        else:
            self._breaker.alive()

    async def _pieces(
        self, path: str, body: dict[str, object], generation: Generation, reply: Reply
    ) -> AsyncGenerator[bytes, None]:
        """The answer's body as it comes, until the stream ends. Closing it closes the connection."""
        request = self._request(path, msgspec.json.encode(body), generation.traceparent)
        now = asyncio.get_running_loop().time
        end = now() + (FOREVER if generation.timeout is None else generation.timeout)
        with contextlib.closing(Deadline(end)) as deadline:
            response = await self._send(request, deadline)
            try:
                await self._check(response)
                assert isinstance(response.stream, httpx.AsyncByteStream)
                pieces, last_words = aiter(response.stream), False
                while (piece := await self._next(pieces, reply, deadline)) is not None:
                    yield piece
                    if reply.finished and not last_words:
                        last_words = True
                        deadline.move(min(end, now() + TAIL))
            finally:
                await response.aclose()

    def _request(self, path: str, content: bytes, traceparent: str | None) -> httpx.Request:
        """With a stream of its own, or httpx would make all headers anew."""
        stream, extensions = httpx.ByteStream(content), {"timeout": self._timeout}
        request = httpx.Request(
            "POST", self._urls[path], headers=self._asking, stream=stream, extensions=extensions
        )
        request.headers["content-length"] = str(len(content))
        if traceparent is not None:
            request.headers["traceparent"] = traceparent
        return request

    async def _send(self, request: httpx.Request, deadline: Deadline) -> httpx.Response:
        if self._transport is None:
            raise Unavailable(f"server {self._name} is not connected", "upstream_unreachable")
        try:
            return await deadline.wait(self._transport.handle_async_request(request))
        except TimeoutError:
            raise DeadlineExceeded("the request's time is used up") from None
        except httpx.HTTPError as error:
            raise self._broken(error) from error

    async def _check(self, response: httpx.Response) -> None:
        if response.status_code != 200:
            body = await self._body(response)
            raise failure(self._name, response.status_code, body, response.headers)
        type = response.headers.get("content-type", "")
        if not type.startswith("text/event-stream") or response.headers.get("content-encoding"):
            raise Unavailable(f"server {self._name} does not stream", "upstream_protocol")

    async def _body(self, response: httpx.Response) -> bytes:
        """As much as comes soon; of an error it only helps to tell one refusal from another."""
        body = bytearray()
        with contextlib.suppress(TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(TAIL):
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > MAX_ERROR:
                        break
        return bytes(body)

    async def _next(self, pieces: AsyncIterator[bytes], reply: Reply, deadline: Deadline) -> bytes | None:
        """None at the end. When all text is there, how a stream ends does not matter any more."""
        try:
            return await deadline.wait(anext(pieces, None))
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

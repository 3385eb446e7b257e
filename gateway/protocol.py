"""HTTP/1.1 for uvicorn, with limits and deadlines for clients that do not keep to it.

uvicorn on httptools is fast, and trusting: it takes a head of any size, waits for ever for the rest of a half-sent one
and for a client that does not read what it asked for, and does not miss a Host. A few hundred such connections cost
their owner nothing.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.errors import ApiError, openai_error
from gateway.gathering import GatheringTransport
from gateway.watching import Line

HEAD_TIMEOUT = 10.0  # seconds from the first byte to the end of the head
HALF_CLOSED = 0.25  # seconds that a client can still be answered after it has closed its own side
WRITE_TIMEOUT = 60.0  # seconds in which a client takes next to nothing of what is waiting for it
MAX_HEAD = 64 * 1024  # bytes of a request line and its headers


_AUTHORITY = re.compile(rb"^https?://[^/?#]*", re.IGNORECASE)

NO_HTTP = ApiError(400, "This is no valid HTTP/1.1 request.", code="invalid_http")
LATE = ApiError(408, "The head of the request did not arrive in time.", code="request_timeout")
TOO_LARGE = ApiError(431, f"The head is longer than {MAX_HEAD} bytes.", code="headers_too_large")


class GuardedProtocol(HttpToolsProtocol):
    """Closes a connection that was given room and time enough, with a status where the client can still be told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = _Timer(self.loop, self._head_is_late)
        self._write = _Timer(self.loop, self._nobody_reads)
        self._leaving = _Timer(self.loop, self._nobody_reads)
        self._unfinished = 0  # bytes of a head whose end has not come
        self._begun = False  # whether such a head has begun
        self._line = Line()
        self._trailers = 0  # bytes of headers that came behind the body
        self._refusal = NO_HTTP  # what a client is told that the parser does not understand

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        self._gathering = GatheringTransport(transport)
        super().connection_made(cast(asyncio.Transport, self._gathering))
        self._head.start(HEAD_TIMEOUT)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._feed(data)
        if self.transport.is_closing():
            return
        self._unfinished = self._unfinished + len(data) if self._begun else 0
        if self._unfinished > MAX_HEAD:
            self._refuse(TOO_LARGE)
        elif self._running:
            self._head.stop()
        else:
            self._head.start(HEAD_TIMEOUT)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as asked:
            self._decline(data[asked.args[0] :])
        except httptools.HttpParserError:
            self._refuse(self._refusal)

    def _decline(self, rest: bytes) -> None:
        """Take a request to upgrade (Java's client asks for h2c so) for what it is without that; CONNECT is nothing.

        The parser would take the body for the other protocol, so a new one reads the head again.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            return self._refuse(NO_HTTP)
        lines = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._feed(b"\r\n".join([b"%s %s HTTP/1.1" % (method, self.url), *lines, b"", rest]))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[Line.KEY] = self._line
        self._begun = True
        self._trailers = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """What comes behind the body is not taken for a header: those who checked the head have not seen it."""
        if self._begun:
            return super().on_header(name, value)
        self._trailers += len(name) + len(value) + 4
        if self._trailers > MAX_HEAD:
            self._refusal = TOO_LARGE
            raise ValueError("too large")

    def on_headers_complete(self) -> None:
        self._begun = False
        self._check_head()
        if not self.parser.should_upgrade():
            # Servers must accept absolute targets (RFC 9112, 3.2.2); whose they are says nothing here.
            self.url = _AUTHORITY.sub(b"", self.url, count=1) or b"/"
            super().on_headers_complete()
            self._keep_path_as_sent()
            if self.parser.get_http_version() == "1.0":
                self.cycle.__class__ = Unframed  # uvicorn makes it itself, and has not begun with it

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _check_head(self) -> None:
        """What is raised here comes back as an error of the parser."""
        size, hosts = len(self.url), 0
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            hosts += name == b"host"
        if size > MAX_HEAD:
            self._refusal = TOO_LARGE
            raise ValueError("too large")
        if hosts > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            raise ValueError("one Host is needed")

    def _keep_path_as_sent(self) -> None:
        """httptools takes what stands behind `//` for an authority and drops it: two names of one path."""
        raw, _, query = self.url.partition(b"?")
        self.scope["path"], self.scope["raw_path"] = unquote(raw.decode("ascii")), raw
        self.scope["query_string"] = query

    def _refuse(self, error: ApiError) -> None:
        body = msgspec.json.encode(openai_error(error))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[error.status] + head % len(body) + body)
        self.transport.close()

    def on_response_complete(self) -> None:
        """Whoever asked does not wait for what is still done after an answer."""
        self._gathering.flush()
        super().on_response_complete()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn never leaves it open
        """Whether to leave our side open: a client may only have said all that it has to, or it may be gone.

        That cannot be told apart, so what is answered at once is, and what takes longer is given up, as proxies do.
        """
        if not self._running:
            return False
        self.cycle.keep_alive = False
        self._leaving.start(HALF_CLOSED)
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write.start(WRITE_TIMEOUT)

    def resume_writing(self) -> None:
        self._write.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head.stop()
        self._write.stop()
        self._leaving.stop()
        super().connection_lost(exc)
        self._line.lost()

    @property
    def _running(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _head_is_late(self) -> None:
        if self._running or self.transport.is_closing():
            return
        if self._begun:
            self._refuse(LATE)
        else:
            self.transport.close()

    def _nobody_reads(self) -> None:
        """The application hears of it as of any disconnect. Closing would wait for the client to read the rest."""
        self.transport.abort()


class Unframed(RequestResponseCycle):
    """Answers HTTP/1.0, which knows no chunks: a body of unknown length ends with the connection (RFC 9112, 6.1)."""

    endless = False  # whether this body is one

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            self.endless = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if self.endless:
                self.chunked_encoding = False
        elif self.endless and message["type"] == "http.response.body":
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class _Timer:
    """One deadline at a time. Starting it again does not move it: a byte now and then buys no time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        if self._handle is None:
            self._handle = self._loop.call_later(seconds, self._expired)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _expired(self) -> None:
        self._handle = None
        self._expire()

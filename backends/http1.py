"""HTTP/1.1 without TLS to a server, as a transport of httpx: a request is one write, and a chunk costs its parsing.

httpx's own transport goes through anyio, h11 and a pool that looks at every connection for each request, which costs
several times what the gateway does besides. It keeps TLS, see `backends.remote`.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import cast

import aiohappyeyeballs
import httptools
import httpx

MAX_HEAD = 64 * 1024  # bytes of status line and headers
HIGH_WATER = 256 * 1024  # bytes that wait for whoever reads; the server is held up beyond
NEXT_ADDRESS = 0.25  # seconds after which a name's next address is tried beside the first (RFC 8305)

Origin = tuple[str, int]


class Http1Transport(httpx.AsyncBaseTransport):
    """Any number of connections, of which those that have nothing to do are used again, the latest first.

    Timeouts are those of httpx, but for `pool`: nobody waits for a connection.
    """

    def __init__(self, keep: float) -> None:
        """`keep`: seconds that a connection without work is kept."""
        self._keep = keep
        self._idle: dict[
            Origin, deque[tuple[float, _Connection]]
        ] = {}  # with the time when each gets too old
        self._busy: set[_Connection] = set()
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Returns when the head of the answer is there. Raises httpx.TransportError."""
        # Answers to HEAD have lengths but no bodies.
        if request.url.scheme != "http" or request.method == "HEAD":
            raise httpx.UnsupportedProtocol(f"{request.method} to {request.url.scheme}")
        timeout = request.extensions.get("timeout", {})
        body = await request.aread()
        origin = request.url.host, request.url.port or 80
        connection = self._waiting(origin) or await _connect(origin, timeout.get("connect"))
        self._busy.add(connection)
        try:
            if self._closed:
                connection.end()
            await connection.send(_head(request) + body, timeout.get("write"))
            await connection.head(timeout.get("read"))
        except BaseException:
            self._drop(connection)
            raise
        stream = _Body(self, connection, origin)
        return httpx.Response(connection.status, headers=connection.headers, stream=stream)

    async def aclose(self) -> None:
        """Answers that still run raise httpx.ReadError. Idempotent."""
        self._closed = True
        for idle in self._idle.values():
            for _, connection in idle:
                connection.end()
        self._idle.clear()
        for connection in list(self._busy):
            connection.end()

    def _waiting(self, origin: Origin) -> "_Connection | None":
        idle = self._idle.get(origin)
        now = asyncio.get_running_loop().time()
        while idle:
            old, connection = idle.pop()
            if old > now and connection.renew():
                return connection
            connection.end()
        return None

    def release(self, connection: "_Connection", origin: Origin) -> None:
        """Keep it for the next request if it can serve one."""
        if not connection.reusable:
            return self._drop(connection)
        self._busy.discard(connection)
        idle = self._idle.setdefault(origin, deque())
        now = asyncio.get_running_loop().time()
        while idle and idle[0][0] <= now:
            idle.popleft()[1].end()
        idle.append((now + self._keep, connection))

    def _drop(self, connection: "_Connection") -> None:
        self._busy.discard(connection)
        connection.end()


class _Body(httpx.AsyncByteStream):
    """Everything that has come since the last piece is the next one. Closed early, it closes its connection."""

    def __init__(self, transport: Http1Transport, connection: "_Connection", origin: Origin) -> None:
        self._transport = transport
        self._connection = connection
        self._origin = origin
        self._closed = False

    def __aiter__(self) -> "_Body":
        return self

    async def __anext__(self) -> bytes:
        piece = await self._connection.read()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._transport.release(self._connection, self._origin)


class _Connection(asyncio.Protocol):
    """One request at a time. The parser calls the methods whose names begin with `on_`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._failure: Exception | None = None
        self._writable = True
        self._waiter: asyncio.Future[None] | None = None
        self._since = 0.0  # when the waiting began
        self._patience: float | None = None  # seconds that it may take
        self._timer: asyncio.TimerHandle | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._size = 0  # bytes of headers
        self._headed = self._whole = self._kept = False
        self._pieces: list[bytes] = []
        self._held = 0  # bytes in _pieces

    def renew(self) -> bool:
        """Be ready for the next request. False where the server has closed the connection."""
        if self._failure is not None:
            return False
        self._begin()
        return True

    @property
    def reusable(self) -> bool:
        return self._whole and self._kept and not self._pieces and self._failure is None

    def end(self) -> None:
        """Close it; whoever still reads gets httpx.ReadError. Idempotent."""
        self._fail(httpx.ReadError("the connection is closed"))
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def send(self, data: bytes, timeout: float | None) -> None:
        """Returns when the kernel has most of it."""
        if self._failure is not None or self._transport is None:
            raise self._failure or httpx.WriteError("not connected")
        self._transport.write(data)
        if not self._writable:
            try:
                async with asyncio.timeout(timeout):
                    await self._until(lambda: self._writable)
            except TimeoutError:
                raise httpx.WriteTimeout("the server does not read") from None

    async def head(self, timeout: float | None) -> None:
        """Returns when `status` and `headers` are there. `timeout`: for them, and for each piece after them."""
        self._patience = timeout
        await self._until(lambda: self._headed)

    async def read(self) -> bytes | None:
        """What has come of the body; None at its end."""
        if not (self._pieces or self._whole):
            await self._until(lambda: self._whole or bool(self._pieces))
        if not self._pieces:
            return None
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        held, self._held = self._held, 0
        if held > HIGH_WATER and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        return data

    async def _until(self, come: Callable[[], bool]) -> None:
        while not come():
            if self._failure is not None:
                raise self._failure
            self._since = self._loop.time()
            if self._timer is None and self._patience is not None:
                self._timer = self._loop.call_later(self._patience, self._look)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _look(self) -> None:
        """One timer, set again when it rings too early: setting one for each piece would cost more than the piece."""
        self._timer = None
        if self._waiter is None or self._patience is None:
            return  # the next waiting sets it
        left = self._since + self._patience - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._fail(httpx.ReadTimeout("the server is silent"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, failure: Exception) -> None:
        if self._failure is None:
            self._failure = failure
        self._wake()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(httpx.RemoteProtocolError(str(error)))
            self.end()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        framed = any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        if self._headed and not framed and error is None:
            self._whole = True  # such a body ends with its connection
        self._fail(httpx.ReadError("the server has closed the connection"))

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._wake()

    def on_message_begin(self) -> None:
        if self._headed:
            raise ValueError("an answer to nothing")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._size += len(name) + len(value)
        if self._size > MAX_HEAD:
            raise ValueError("the head is too large")
        if not self._headed:  # else it is a trailer
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:  # the answer is still to come
            self.headers.clear()
        else:
            self._headed = True
            self._kept = self._parser.should_keep_alive()

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)
        before, self._held = self._held, self._held + len(piece)
        if before <= HIGH_WATER < self._held and self._transport is not None:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        self._whole = self._headed


async def _connect(origin: Origin, timeout: float | None) -> _Connection:
    """Raises httpx.ConnectError, httpx.ConnectTimeout."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            found = await loop.getaddrinfo(*origin, type=socket.SOCK_STREAM)
            connected = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=NEXT_ADDRESS)
            _, connection = await loop.create_connection(_Connection, sock=connected)
    except TimeoutError:
        raise httpx.ConnectTimeout("the server cannot be reached") from None
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error
    return connection


def _head(request: httpx.Request) -> bytes:
    """Raises httpx.LocalProtocolError for a header that would be two."""
    headers = request.headers.raw
    lines = b"".join([b"%s: %s\r\n" % header for header in headers])
    if not lines.count(b"\r") == lines.count(b"\n") == len(headers):
        raise httpx.LocalProtocolError("a header has a line break in it")
    first = b"%s %s HTTP/1.1\r\n" % (request.method.encode("ascii"), request.url.raw_path)
    return first + lines + b"\r\n"

"""The transport under httpx's own client, against servers that follow a script on real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from backends import http1
from backends.http1 import Http1Transport

Answer = bytes | Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
OPEN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CLOSE = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"


@dataclass
class Server:
    """Gives each request the next answer, the last one for ever; then closes where the answer asks for it."""

    answers: list[Answer]
    port: int = 0
    connections: int = 0
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0] or 0)
                self.heads.append(head)
                answer = self.answers[min(len(self.heads), len(self.answers)) - 1]
                if not isinstance(answer, bytes):
                    await answer(reader, writer)
                    continue
                self.bodies.append(await reader.readexactly(length))
                writer.write(answer)
                await writer.drain()
                if b"connection: close" in answer:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncIterator[Server]:
    server = Server(list(answers))
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()


@asynccontextmanager
async def client(keep: float = 5.0, timeout: float = 60.0) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=Http1Transport(keep), timeout=timeout) as http:
        yield http


async def forever(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK, b"hi"),
        (OPEN + b"2\r\nhi\r\n3;x=y\r\n!!!\r\n0\r\ntrailer: t\r\n\r\n", b"hi!!!"),
        (CLOSE + b"until the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nconnection: close", b"connection: close"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK, b"hi"),
    ],
)
async def test_bodies(answer: bytes, body: bytes) -> None:
    async with serving(answer) as server, client() as http:
        got = await http.post(server.url + "a?b=%20c", content=b"sent", headers={"x-y": "z"})
    assert (got.content, got.http_version, got.headers.get("link")) == (body, "HTTP/1.1", None)
    assert got.headers.get("trailer") is None
    first, *lines = server.heads[0].split(b"\r\n")
    assert first == b"POST /a?b=%20c HTTP/1.1"
    assert {b"x-y: z", b"content-length: 4"} <= set(lower(lines))
    assert server.bodies == [b"sent"]


def lower(lines: list[bytes]) -> list[bytes]:
    return [line.lower() for line in lines]


async def test_every_byte_alone() -> None:
    whole = OPEN + b"2\r\nhi\r\n1\r\n!\r\n0\r\n\r\n"

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for at in range(len(whole)):
            writer.write(whole[at : at + 1])
            await asyncio.sleep(0.001)

    async with serving(slowly) as server, client() as http:
        for _ in range(2):
            assert (await http.get(server.url)).content == b"hi!"
    assert server.connections == 1


async def test_a_connection_is_used_again_and_again() -> None:
    async with serving(OK) as server, client() as http:
        for _ in range(5):
            assert (await http.get(server.url)).content == b"hi"
        assert server.connections == 1
        await asyncio.gather(*(http.get(server.url) for _ in range(4)))
        assert server.connections == 4


@pytest.mark.parametrize(
    "answer",
    [
        CLOSE + b"x",
        b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx" + OK,  # an answer to nothing
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nxnonsense",
    ],
)
async def test_a_connection_that_is_not_used_again(answer: bytes) -> None:
    async with serving(answer, OK) as server, client() as http:
        assert (await http.get(server.url)).content == b"x"
        assert (await http.get(server.url)).content == b"hi"
    assert server.connections == 2


async def test_what_comes_without_being_asked_for_spoils_a_connection() -> None:
    async def more(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await asyncio.sleep(0.02)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")

    async with serving(more, OK) as server, client() as http:
        await http.get(server.url)
        await asyncio.sleep(0.3)
        assert (await http.get(server.url)).content == b"hi"
    assert server.connections == 2


async def test_an_idle_connection_gets_too_old() -> None:
    async with serving(OK) as server, client(keep=0.05) as http:
        await http.get(server.url)
        await asyncio.sleep(0.3)
        await http.get(server.url)
        assert server.connections == 2
        await asyncio.wait_for(server.left.wait(), 60)


async def test_an_idle_connection_that_the_server_closes() -> None:
    async def once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await asyncio.sleep(0.02)
        raise ConnectionResetError

    async with serving(once) as server, client() as http:
        for _ in range(2):
            await http.get(server.url)
            await asyncio.sleep(0.3)
    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\na: " + b"x" * http1.MAX_HEAD + b"\r\n\r\n", httpx.RemoteProtocolError),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
            httpx.TransportError,
        ),
        (OPEN + b"nonsense\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nx: connection: close\r\n\r\nhi", httpx.ReadError),
        (OPEN + b"20\r\nconnection: close", httpx.ReadError),
        (b"connection: close", httpx.TransportError),
    ],
)
async def test_what_is_no_answer(answer: bytes, kind: type[Exception]) -> None:
    async with serving(answer) as server, client() as http:
        with pytest.raises(kind):
            await http.get(server.url)


async def test_a_server_that_is_silent() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OPEN)
        for _ in range(5):
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.3)
        await asyncio.sleep(60)

    async with serving(half, forever) as server, client(timeout=1.2) as http:
        async with http.stream("GET", server.url) as answer:
            told = b""
            with pytest.raises(httpx.ReadTimeout):
                async for piece in answer.aiter_raw():
                    told += piece
        assert told == b"xxxxx"  # each piece has its own time
        with pytest.raises(httpx.ReadTimeout):
            await http.get(server.url)


async def test_a_server_that_does_not_read() -> None:
    async with serving(forever) as server, client(timeout=0.3) as http:
        with pytest.raises(httpx.WriteTimeout):
            await http.post(server.url, content=b"x" * 30_000_000)


async def test_nobody_listens() -> None:
    async with serving(OK) as server:
        pass
    async with client() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(server.url)


async def test_a_large_question_and_a_large_answer() -> None:
    big = b"x" * 5_000_000
    async with serving(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(big), big)) as server:
        async with client() as http:
            assert (await http.post(server.url, content=big)).content == big
    assert server.bodies == [big]


async def test_who_reads_slowly_holds_the_server_up() -> None:
    sent = 0

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(OPEN)
        while sent < 200:
            writer.write(b"186a0\r\n" + b"x" * 100_000 + b"\r\n")
            await writer.drain()
            sent += 1
        writer.write(b"0\r\n\r\n")

    async with serving(endless) as server, client() as http:
        async with http.stream("GET", server.url) as answer:
            await asyncio.sleep(0.3)
            assert sent < 150
            assert len(await answer.aread()) == 20_000_000


async def test_closing_an_answer_early_closes_its_connection() -> None:
    async def open_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OPEN + b"1\r\nx\r\n")
        await reader.readexactly(1)

    async with serving(open_end, OK) as server, client() as http:
        async with http.stream("GET", server.url) as answer:
            assert await anext(answer.aiter_raw()) == b"x"
        await asyncio.wait_for(server.left.wait(), 60)
        assert (await http.get(server.url)).content == b"hi"


async def test_cancelling_a_request_closes_its_connection() -> None:
    async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)

    async with serving(wait) as server, client() as http:
        asking = asyncio.create_task(http.get(server.url))
        while not server.heads:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait_for(server.left.wait(), 60)


async def test_closing_the_transport_ends_what_runs() -> None:
    async with serving(OK, forever) as server:
        transport = Http1Transport(5.0)
        await transport.handle_async_request(httpx.Request("GET", server.url))
        asking = asyncio.create_task(transport.handle_async_request(httpx.Request("GET", server.url)))
        while len(server.heads) < 2:
            await asyncio.sleep(0.01)
        await transport.aclose()
        with pytest.raises(httpx.ReadError):
            await asking
        with pytest.raises(httpx.TransportError):
            await transport.handle_async_request(httpx.Request("GET", server.url))


@pytest.mark.parametrize(
    ("method", "url", "headers", "kind"),
    [
        ("GET", "https://127.0.0.1/", {}, httpx.UnsupportedProtocol),
        ("HEAD", "http://127.0.0.1/", {}, httpx.UnsupportedProtocol),
        ("GET", "", {b"x": b"y\r\nz: smuggled"}, httpx.LocalProtocolError),
        ("GET", "", {b"x": b"y\nz"}, httpx.LocalProtocolError),
    ],
)
async def test_what_is_not_sent(
    method: str, url: str, headers: dict[bytes, bytes], kind: type[Exception]
) -> None:
    async with serving(OK) as server, client() as http:
        with pytest.raises(kind):
            await http.request(method, url or server.url, headers=headers)
        assert server.heads == []


async def test_a_name_with_several_addresses() -> None:
    """localhost is ::1 too on most machines, where nobody listens."""
    async with serving(OK) as server, client() as http:
        assert (await http.get(f"http://localhost:{server.port}/")).content == b"hi"

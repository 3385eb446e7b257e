"""A scripted HTTP/1.1 server on a real socket that speaks server-sent events, well or badly."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from backends.backend import BackendError, Delta, Generation, Sampling
from backends.breaker import Breaker
from backends.prompt import ChatMessage, Prompt
from backends.remote import RemoteBackend

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Heard:
    """One request, as it came over the wire."""

    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    connection: int

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


@dataclass
class Stub:
    """Each request but GET plays the next script, the last one for ever."""

    port: int = 0
    scripts: list[Script] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    models_status: int = 200
    connections: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)  # set when a client closes in mid-answer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def plays(self, *scripts: Script) -> None:
        self.scripts = list(scripts)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while (heard := await self._hear(reader, number)) is not None:
                if heard.path == "/v1/models":
                    writer.write(head(self.models_status, "application/json", {}, 2) + b"{}")
                    continue
                self.heard.append(heard)
                playing = asyncio.ensure_future(self._next()(writer))
                await self._play(playing, reader)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()

    async def _play(self, playing: asyncio.Future[None], reader: asyncio.StreamReader) -> None:
        """The script, ended when the client goes away."""
        leaving = asyncio.ensure_future(reader.read(1))
        await asyncio.wait((playing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            playing.cancel()
            self.left.set()
        elif not leaving.done():
            leaving.cancel()
        await asyncio.gather(playing, leaving, return_exceptions=True)
        if playing.cancelled():
            raise ConnectionResetError
        if (error := playing.exception()) is not None:
            raise error

    def _next(self) -> Script:
        return self.scripts[min(len(self.heard), len(self.scripts)) - 1]

    async def _hear(self, reader: asyncio.StreamReader, connection: int) -> Heard | None:
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError:
            return None
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Heard(lines[0].split(" ")[1], headers, body, connection)


def head(status: int, type: str, headers: dict[str, str], length: int | None = None) -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\ncontent-type: {type}\r\n{framing}\r\n{extra}\r\n".encode()


class Wire:
    """Scripts: what a server does with a request."""

    def chat(self, *pieces: str, finish: str | None = "stop", usage: dict[str, Any] | None = None) -> bytes:
        """A whole stream of chat chunks."""
        chunks: list[object] = [
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": None}
        ]
        chunks += [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
        if finish is not None:
            chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        if usage is not None:
            chunks.append({"choices": [], "usage": usage})
        return self.data(*chunks) + b"data: [DONE]\n\n"

    def data(self, *chunks: object) -> bytes:
        return b"".join(
            b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n" for chunk in chunks
        )

    def says(
        self, *parts: bytes | float, end: bool = True, type: str = "text/event-stream", **headers: str
    ) -> Script:
        """An answer in chunks: bytes are sent, numbers are waited for (seconds); without `end` it never ends."""

        async def play(writer: asyncio.StreamWriter) -> None:
            writer.write(head(200, type, headers))
            for part in parts:
                if isinstance(part, bytes):
                    writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                    await writer.drain()
                else:
                    await asyncio.sleep(part)
            if not end:
                await asyncio.sleep(60)
            writer.write(b"0\r\n\r\n")
            await writer.drain()

        return play

    def status(self, status: int, body: object = None, **headers: str) -> Script:
        async def play(writer: asyncio.StreamWriter) -> None:
            said = json.dumps(body if body is not None else {}).encode()
            writer.write(head(status, "application/json", headers, len(said)) + said)
            await writer.drain()

        return play

    def breaks(self, *parts: bytes, reset: bool = False) -> Script:
        """Some raw bytes, then the end of the connection: in an orderly way, or by RST."""

        async def play(writer: asyncio.StreamWriter) -> None:
            for part in parts:
                writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)  # the bytes are read before a reset would overtake them
            if reset:
                sock: socket.socket = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort() if reset else writer.close()
            raise ConnectionResetError

        return play

    def head(self) -> bytes:
        return head(200, "text/event-stream", {})

    def framed(self, part: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(part), part)


class Driven(RemoteBackend):
    """A backend with what tests do to it."""

    async def collect(self, generation: Generation) -> list[Delta]:
        async with aclosing(self.stream(generation)) as deltas:
            return [delta async for delta in deltas]

    async def broken(self, generation: Generation) -> tuple[str, BackendError]:
        """The text that came, and the error that ended it."""
        text = ""
        with pytest.raises(BackendError) as caught:
            async with aclosing(self.stream(generation)) as deltas:
                async for delta in deltas:
                    text += delta.text
        return text, caught.value


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the gateway runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    stub = Stub()
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
    stub.port = server.sockets[0].getsockname()[1]
    yield stub
    server.close()


@pytest.fixture
def generation() -> Callable[..., Generation]:
    def make(text: str | None = None, **options: Any) -> Generation:
        messages = () if text is not None else (ChatMessage("user", "Say hello"),)
        fields = {"ids": None, "id": "r1", "sampling": Sampling(max_tokens=16, seed=7)} | options
        return Generation(prompt=Prompt(messages=messages, text=text), **fields)

    return make


@pytest.fixture
def remote() -> Callable[..., Any]:
    """An asynchronous context manager: a started backend."""

    @asynccontextmanager
    async def make(url: str, breaker: Breaker | None = None, **options: Any) -> AsyncIterator[Driven]:
        fields: dict[str, Any] = {
            "name": "70b/0", "model": "big", "kind": "vllm", "api_key": "sk-upstream", "tokenizer": None,
            "context_length": 4096, "connect_timeout": 0.5, "read_timeout": 5.0, "max_in_flight": 4,
        }  # fmt: skip
        backend = Driven(url=url, breaker=breaker, **fields | options)
        await backend.start()
        try:
            yield backend
        finally:
            await backend.close()

    return make

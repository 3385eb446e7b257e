"""The gateway's end of the wire, over real sockets: a server of the test stands in for an engine."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from backends.frames import MAX_MESSAGE, Frames, framed
from backends.link import EngineLink, EngineLost
from backends.wire import (
    Abort,
    EngineConfig,
    Event,
    Load,
    Message,
    Outputs,
    Refused,
    Stored,
    Subscribe,
    ToEngine,
    decode_to_engine,
    encode,
)


class Peer:
    """An engine that does as the test says."""

    def __init__(self, config: EngineConfig) -> None:
        self._path = config.socket
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.heard: list[ToEngine] = []

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        frames = Frames()
        while data := await reader.read(65536):
            self.heard += map(decode_to_engine, frames.take(data))

    def say(self, *messages: Message) -> None:
        self.write(b"".join(framed(encode(message)) for message in messages))

    def write(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._server is not None:
            self._server.close()


class Listener:
    """A link, and what it has called back with."""

    def __init__(self, config: EngineConfig) -> None:
        self.heard: list[Outputs | Refused | Event] = []
        self.link = EngineLink(config, self.heard.append, self.heard.append, keys=True)
        self.running = asyncio.create_task(self.link.run())


@pytest.fixture
def config(engine_config: Callable[..., EngineConfig]) -> EngineConfig:
    return engine_config()


@pytest.fixture
async def peer(config: EngineConfig) -> AsyncIterator[Peer]:
    peer = Peer(config)
    yield peer
    peer.end()


@pytest.fixture
async def listener(config: EngineConfig) -> AsyncIterator[Listener]:
    listener = Listener(config)
    yield listener
    listener.running.cancel()
    await asyncio.gather(listener.running, return_exceptions=True)


def load(steps: int = 0) -> Load:
    numbers: dict[str, Any] = {field.name: 0 for field in msgspec.structs.fields(Load) if field.required}
    return Load(**numbers | {"engine": "e", "incarnation": "1", "finished": {}, "steps": steps})


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


async def joined(peer: Peer) -> None:
    await peer.listen()
    await until(lambda: bool(peer.heard))


async def test_it_waits_for_an_engine_and_says_what_it_wants_to_know(peer: Peer, listener: Listener) -> None:
    with pytest.raises(EngineLost):
        listener.link.send(Abort(id="a"))
    await asyncio.sleep(0.1)
    await joined(peer)
    listener.link.send(Abort(id="a"))
    listener.link.ask()
    await until(lambda: len(peer.heard) == 3)
    assert peer.heard == [Subscribe(keys=True), Abort(id="a"), Subscribe(keys=True)]


async def test_answers_and_events_come_in_their_order(peer: Peer, listener: Listener) -> None:
    await joined(peer)
    said = [
        load(1),
        Outputs([]),
        Stored(engine="e", keys=[b"x"]),
        Refused(id="a", code="c", message="m"),
        load(2),
    ]
    peer.say(*said)
    await until(lambda: len(listener.heard) == len(said))
    assert listener.heard == said


async def test_the_end_of_the_engine_is_the_end_of_the_link(peer: Peer, listener: Listener) -> None:
    await joined(peer)
    peer.end()
    await listener.running
    with pytest.raises(EngineLost):
        listener.link.send(Abort(id="a"))


@pytest.mark.parametrize("body", [b"", b"\xc1", encode(Abort(id="a"))], ids=["empty", "garbage", "an order"])
async def test_a_malformed_message_is_dropped(
    peer: Peer, listener: Listener, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    await joined(peer)
    peer.write(framed(body))
    peer.say(load(1))
    await until(lambda: listener.heard == [load(1)])
    assert "dropped a malformed message" in caplog.text


async def test_what_are_no_messages_ends_the_link(peer: Peer, listener: Listener) -> None:
    await joined(peer)
    peer.write((MAX_MESSAGE + 1).to_bytes(4, "big"))
    with pytest.raises(ValueError, match="67108865 bytes"):
        await listener.running


async def test_what_a_callback_raises_comes_out_and_nothing_is_read_after_it(
    peer: Peer, config: EngineConfig
) -> None:
    heard: list[Event] = []

    def listen(event: Event) -> None:
        heard.append(event)
        raise KeyError("no such replica")

    running = asyncio.create_task(EngineLink(config, lambda answer: None, listen, keys=False).run())
    await joined(peer)
    peer.say(load(1), load(2))
    peer.say(load(3))
    with pytest.raises(KeyError, match="no such replica"):
        await running
    assert heard == [load(1)]


async def test_an_engine_that_is_gone_at_once_is_no_error(
    peer: Peer, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await peer.listen()
    await until(lambda: peer._writer is not None)
    peer.end()
    await listener.running
    assert "the engine's process is gone" in caplog.text

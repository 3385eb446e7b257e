"""Writes of one turn of the loop, seen from the other end of a socket."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from gateway.gathering import ENOUGH, GatheringTransport


class Here(asyncio.Protocol):
    def __init__(self) -> None:
        self.paused = 0

    def pause_writing(self) -> None:
        self.paused += 1


class Pair:
    """`sending` writes into a socket, whose other end can be read without waiting."""

    def __init__(self, transport: asyncio.Transport, here: Here, other: socket.socket) -> None:
        self.sending = GatheringTransport(transport)
        self.here = here
        self._other = other

    def arrived(self) -> bytes | None:
        try:
            return self._other.recv(1 << 20)
        except BlockingIOError:
            return None


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    near, far = socket.socketpair()
    far.setblocking(False)
    transport, here = await asyncio.get_running_loop().create_connection(Here, sock=near)
    yield Pair(transport, here, far)
    transport.abort()
    await asyncio.sleep(0)
    far.close()


async def test_writes_of_one_turn_are_one_piece(pair: Pair) -> None:
    for piece in (b"a", b"", b"bc", b"d"):
        pair.sending.write(piece)
    assert pair.arrived() is None
    await asyncio.sleep(0)
    assert pair.arrived() == b"abcd"
    pair.sending.write(b"e")
    await asyncio.sleep(0)
    assert pair.arrived() == b"e"


async def test_what_is_flushed_does_not_wait(pair: Pair) -> None:
    for piece in (b"a", b"b"):
        pair.sending.write(piece)
    pair.sending.flush()
    assert pair.arrived() == b"ab"
    pair.sending.write(b"c")
    await asyncio.sleep(0)
    assert pair.arrived() == b"c"


async def test_who_writes_on_and_on_is_told_to_wait(pair: Pair) -> None:
    """Without a turn of the loop in between."""
    for _ in range(100):
        pair.sending.write(b"x" * (ENOUGH // 4))
        if pair.here.paused:
            break
    assert pair.here.paused == 1


async def test_closing_sends_what_was_written(pair: Pair) -> None:
    pair.sending.write(b"last words")
    pair.sending.close()
    assert pair.sending.is_closing()
    await asyncio.sleep(0.01)
    assert (pair.arrived(), pair.arrived()) == (b"last words", b"")


async def test_aborting_does_not(pair: Pair) -> None:
    pair.sending.write(b"never said")
    pair.sending.abort()
    await asyncio.sleep(0.01)
    assert pair.arrived() == b""

"""Questions and answers between two processes of one gateway, over a pair of sockets that only they have.

Each side asks whenever it likes, several questions at a time. A frame is its length (4 bytes, big-endian), the number
of its question (8), its kind (1), and the message.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Self

HEAD = struct.Struct(">IQB")
QUESTION, ANSWER, FAILURE = 0, 1, 2

_log = logging.getLogger(__name__)

Reply = Callable[[bytes], Awaitable[bytes]]


class ChannelLost(Exception):
    """The other process is gone, or could make nothing of the question."""


class Channel:
    """One end. `run` has to run for answers to come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply) -> None:
        """`reply` answers the questions of the other side; what it raises is logged here, and told there."""
        self._reader = reader
        self._writer = writer
        self._reply = reply
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._replies: set[asyncio.Task[None]] = set()
        self._lost = False

    @classmethod
    async def over(cls, end: socket.socket, reply: Reply) -> Self:
        """Over a connected stream socket, which it closes in the end."""
        reader, writer = await asyncio.open_connection(sock=end)
        return cls(reader, writer, reply)

    async def ask(self, question: bytes, timeout: float | None = None) -> bytes:
        """Raises ChannelLost, and TimeoutError after `timeout` seconds."""
        if self._lost:
            raise ChannelLost("the other process is gone")
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            self._send(number, QUESTION, question)
            async with asyncio.timeout(timeout):
                return await answer
        finally:
            del self._asked[number]

    async def run(self) -> None:
        """Returns when the other side is gone; what was asked and not yet answered fails then."""
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    length, number, kind = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                    self._take(number, kind, await self._reader.readexactly(length))
        finally:
            self._lost = True
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(ChannelLost("the other process is gone"))
            self._writer.close()

    async def finish(self, timeout: float) -> None:
        """Give the answers that are due, within so many seconds."""
        if self._replies:
            await asyncio.wait(self._replies, timeout=timeout)
        with suppress(ConnectionError):
            await self._writer.drain()

    def _take(self, number: int, kind: int, body: bytes) -> None:
        if kind == QUESTION:
            task = asyncio.ensure_future(self._answer(number, body))
            self._replies.add(task)
            task.add_done_callback(self._replies.discard)
            return
        answer = self._asked.get(number)  # None: it came too late
        if answer is None or answer.done():
            return
        if kind == FAILURE:
            answer.set_exception(ChannelLost("the other process has failed to answer"))
        else:
            answer.set_result(body)

    async def _answer(self, number: int, question: bytes) -> None:
        try:
            answer = await self._reply(question)
        except Exception:
            _log.exception("a question of another process of the gateway could not be answered")
            self._send(number, FAILURE, b"")
        else:
            self._send(number, ANSWER, answer)

    def _send(self, number: int, kind: int, body: bytes) -> None:
        """Never waits: what is said is little, and the other side always listens."""
        if not self._lost:
            self._writer.write(HEAD.pack(len(body), number, kind) + body)

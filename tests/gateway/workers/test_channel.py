"""Questions that go both ways at once over one pair of sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.workers.channel import Channel, ChannelLost


async def shout(question: bytes) -> bytes:
    if question == b"slow":
        await asyncio.sleep(0.2)
    if question == b"endless":
        await asyncio.sleep(3600)
    if question == b"wrong":
        raise ValueError("no such question")
    return question.upper()


async def spell(question: bytes) -> bytes:
    return b"-".join(bytes([byte]) for byte in question)


@asynccontextmanager
async def pair(
    one: Callable[[bytes], Awaitable[bytes]] = spell, other: Callable[[bytes], Awaitable[bytes]] = shout
) -> AsyncIterator[tuple[Channel, Channel, asyncio.Task[None]]]:
    """The asker, who spells; the other, who shouts; and the other's task."""
    near, far = socket.socketpair()
    channels = await Channel.over(near, one), await Channel.over(far, other)
    tasks = [asyncio.create_task(channel.run()) for channel in channels]
    yield *channels, tasks[1]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_answers_find_their_questions_in_whatever_order() -> None:
    async with pair() as (near, far, _):
        slow = asyncio.create_task(near.ask(b"slow"))
        assert await near.ask(b"quick") == b"QUICK"
        assert await far.ask(b"abc") == b"a-b-c"
        assert await slow == b"SLOW"
        long = b"x" * 3_000_000
        assert await near.ask(long) == long.upper()
        assert await near.ask(b"") == b""


async def test_one_that_cannot_answer_says_so_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with pair() as (near, _, _):
        with pytest.raises(ChannelLost):
            await near.ask(b"wrong")
        assert "no such question" in caplog.text
        assert await near.ask(b"right") == b"RIGHT"


async def test_an_answer_that_comes_too_late_is_nobody_s() -> None:
    async with pair() as (near, _, _):
        with pytest.raises(TimeoutError):
            await near.ask(b"slow", 0.05)
        await asyncio.sleep(0.3)
        assert await near.ask(b"next") == b"NEXT"


async def test_who_waits_is_told_when_the_other_is_gone() -> None:
    async with pair() as (near, _, other):
        waiting = asyncio.create_task(near.ask(b"endless"))
        await asyncio.sleep(0.05)
        other.cancel()
        with pytest.raises(ChannelLost):
            await waiting
        with pytest.raises(ChannelLost):
            await near.ask(b"hello")

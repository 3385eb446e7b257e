"""Work under watch: whatever ends it, nothing of it runs on."""

import asyncio
from typing import NoReturn

import pytest
from starlette.types import Message

from gateway.api.watching import disconnected, watched
from gateway.errors import ClientGone


class Work:
    """Runs for a while; `ended` tells that its cleaning up has been waited for."""

    def __init__(self) -> None:
        self.ended = False

    async def run(self, seconds: float = 30.0) -> str:
        try:
            await asyncio.sleep(seconds)
            return "done"
        finally:
            await asyncio.sleep(0.01)
            self.ended = True


async def never() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def raising(error: Exception) -> NoReturn:
    await asyncio.sleep(0.01)
    raise error


def others() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_the_result() -> None:
    assert await watched(Work().run(0.01), never(), never()) == "done"
    assert not others()


async def test_the_error_of_the_work() -> None:
    async def fail() -> str:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await watched(fail(), never())
    assert not others()


async def test_a_watcher_ends_the_work() -> None:
    work = Work()
    with pytest.raises(ClientGone):
        await watched(work.run(), never(), raising(ClientGone()))
    assert work.ended and not others()


async def test_work_that_is_done_wins() -> None:
    async def at_once() -> str:
        return "done"

    async def fail_at_once() -> NoReturn:
        raise ClientGone

    assert await watched(at_once(), fail_at_once()) == "done"
    assert not others()


async def test_cancelling_the_caller() -> None:
    work = Work()
    caller = asyncio.ensure_future(watched(work.run(), never()))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.ended and not others()


async def test_only_a_disconnect_is_one() -> None:
    messages: list[Message] = [
        {"type": "http.request"},
        {"type": "http.request"},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return messages.pop(0)

    with pytest.raises(ClientGone):
        await disconnected(receive)
    assert messages == []

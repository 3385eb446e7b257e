"""Work under watch: whatever ends it, nothing of it runs on."""

import asyncio

import pytest
from starlette.types import Message

from gateway.errors import ClientGone
from gateway.watching import End, Line, Strike, Watcher, disconnected, watched


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


class Silent:
    """A watcher that never strikes; `watching` tells whether it still has to."""

    watching = False

    def __call__(self, strike: Strike) -> End:
        self.watching = True
        return self.end

    def end(self) -> None:
        self.watching = False


def striking(error: Exception, after: float = 0.01) -> Watcher:
    return lambda strike: asyncio.get_running_loop().call_later(after, strike, error).cancel


def at_once(error: Exception) -> Watcher:
    def watch(strike: Strike) -> End:
        strike(error)
        return lambda: None

    return watch


async def test_the_result() -> None:
    silent = Silent()
    assert await watched(Work().run(0.01), silent) == "done"
    assert not silent.watching


async def test_the_error_of_the_work() -> None:
    async def fail() -> str:
        raise KeyError("x")

    silent = Silent()
    with pytest.raises(KeyError):
        await watched(fail(), silent)
    assert not silent.watching


async def test_a_watcher_ends_the_work() -> None:
    work, silent = Work(), Silent()
    with pytest.raises(ClientGone):
        await watched(work.run(), silent, striking(ClientGone()), striking(KeyError(), 0.011))
    assert work.ended and not silent.watching
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()
    await asyncio.sleep(0)  # nothing is left that would cancel the next thing


async def test_a_watcher_may_strike_before_the_work_begins() -> None:
    work = Work()
    with pytest.raises(ClientGone):
        await watched(work.run(), at_once(ClientGone()))
    assert not work.ended
    await asyncio.sleep(0)


async def test_work_that_ends_in_another_way_when_it_is_cancelled() -> None:
    async def stubborn(error: Exception | None) -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            if error is not None:
                raise error from None
        return "done"

    for error in (None, KeyError()):
        with pytest.raises(ClientGone):
            await watched(stubborn(error), striking(ClientGone()))
    await asyncio.sleep(0)


async def test_a_strike_after_the_end_does_nothing() -> None:
    strikes: list[Strike] = []

    def keep(strike: Strike) -> End:
        strikes.append(strike)
        return lambda: None

    assert await watched(Work().run(0.0), keep) == "done"
    strikes[0](ClientGone())
    await asyncio.sleep(0)


async def test_a_deadline_inside_the_work_is_told_from_a_strike() -> None:
    async def timed(seconds: float) -> str:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(30)
        except TimeoutError:
            return "late"
        return "never"

    assert await watched(timed(0.01), striking(ClientGone(), 5.0)) == "late"
    with pytest.raises(ClientGone):
        await watched(timed(5.0), striking(ClientGone()))


async def test_cancelling_the_caller() -> None:
    work, silent = Work(), Silent()
    caller = asyncio.ensure_future(watched(work.run(), silent))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.ended and not silent.watching


async def test_cancelling_the_caller_while_a_strike_is_under_way() -> None:
    work = Work()
    caller = asyncio.ensure_future(watched(work.run(), striking(ClientGone(), 0.0)))
    await asyncio.sleep(0.005)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_only_a_disconnect_is_one() -> None:
    messages: list[Message] = [
        {"type": "http.request"},
        {"type": "http.request"},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return messages.pop(0)

    with pytest.raises(ClientGone):
        await watched(Work().run(), disconnected({}, receive))
    assert messages == []


async def test_what_the_connection_raises_is_raised() -> None:
    async def receive() -> Message:
        raise OSError

    with pytest.raises(OSError):
        await watched(Work().run(), disconnected({}, receive))


async def nothing_comes() -> Message:
    raise AssertionError("a server of ours tells by the line")


async def test_our_own_server_tells_when_the_line_is_lost() -> None:
    line, work = Line(), Work()
    asyncio.get_running_loop().call_later(0.01, line.lost)
    with pytest.raises(ClientGone):
        await watched(work.run(), disconnected({Line.KEY: line}, nothing_comes))
    assert work.ended


async def test_a_line_that_is_lost_already() -> None:
    line = Line()
    line.lost()
    with pytest.raises(ClientGone):
        await watched(Work().run(), disconnected({Line.KEY: line}, nothing_comes))


async def test_who_has_ended_hears_nothing_of_the_line() -> None:
    line = Line()
    assert await watched(Work().run(0.0), line.watch) == "done"
    line.lost()
    await asyncio.sleep(0)

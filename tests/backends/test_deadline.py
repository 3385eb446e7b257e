import asyncio
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from backends.deadline import Deadline


def soon(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def value(after: float = 0.0) -> int:
    await asyncio.sleep(after)
    return 7


async def test_what_is_done_in_time() -> None:
    with closing(Deadline(soon(5))) as deadline:
        assert [await deadline.wait(value()) for _ in range(3)] == [7, 7, 7]


async def test_the_time_comes_first() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("work")

    with closing(Deadline(soon(0.5))) as deadline:
        assert await deadline.wait(value()) == 7
        with pytest.raises(TimeoutError):
            await deadline.wait(work())
        assert ended == ["work"]
        with pytest.raises(TimeoutError):  # it stays passed
            await deadline.wait(work())
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    await asyncio.sleep(0)  # nothing of a cancellation is left behind


async def test_work_that_need_not_wait_is_done_after_the_time() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    with closing(Deadline(soon(-1))) as deadline:
        given = numbers()
        assert [await deadline.wait(anext(given)) for _ in range(2)] == [1, 2]


async def test_moved() -> None:
    with closing(Deadline(soon(60))) as deadline:
        deadline.move(soon(0.05))
        with pytest.raises(TimeoutError):
            await deadline.wait(value(3600))


async def test_between_two_waits_nobody_is_cancelled() -> None:
    with closing(Deadline(soon(0.02))) as deadline:
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            await deadline.wait(value(60))


async def test_a_cancellation_from_outside_is_no_timeout() -> None:
    with closing(Deadline(soon(60))) as deadline:
        waiting = asyncio.create_task(deadline.wait(value(60)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_cancellation_at_the_same_moment_wins() -> None:
    """As with `asyncio.timeout`: who cancels a task may count on its end."""
    deadline = Deadline(soon(60))
    waiting = asyncio.create_task(deadline.wait(value(60)))
    await asyncio.sleep(0)
    deadline.move(soon(-1))
    await asyncio.sleep(0)  # the timer has run, the task has not
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    deadline.close()


async def test_closed_it_ends_nothing() -> None:
    deadline = Deadline(soon(0.02))
    deadline.close()
    assert await deadline.wait(value(0.05)) == 7

"""Several answers told as one, over scripted streams: nothing lost, nothing left running."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import pytest

from backends.backend import Delta, Unavailable, Usage
from gateway.request import Answer, Route
from gateway.several import MergedDeltas, as_one, on_one_tier, together


class Scripted:
    """Deltas with a pause before each; an exception is raised in its turn."""

    def __init__(self, *steps: Delta | Exception, pause: float = 0.0) -> None:
        self._steps = iter(steps)
        self._pause = pause
        self.pulled = 0
        self.closed = self.remembered = 0

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        await asyncio.sleep(self._pause)
        step = next(self._steps, None)
        if step is None:
            raise StopAsyncIteration
        if isinstance(step, Exception):
            raise step
        self.pulled += 1
        return step

    async def remember(self) -> None:
        self.remembered += 1

    async def aclose(self) -> None:
        self.closed += 1


def usage(prompt: int, completion: int, cached: int = 0) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


def last(text: str, used: Usage, index: int = 0) -> Delta:
    return Delta(index=index, text=text, finish="stop", usage=used)


async def test_indices_follow_the_prompts_and_usage_is_the_sum() -> None:
    one = Scripted(Delta(text="a"), Delta(index=1, text="b", finish="stop"), last("c", usage(1, 3, 1)))
    two = Scripted(last("d", usage(10, 20, 5), index=1))
    async with aclosing(MergedDeltas([one, two], 2)) as merged:
        told = [delta async for delta in merged]
    assert sorted((delta.index, delta.text) for delta in told) == [(0, "a"), (0, "c"), (1, "b"), (3, "d")]
    assert [delta.usage for delta in told[:-1]] == [None] * 3
    assert told[-1].usage == usage(11, 23, 6)
    assert one.closed == two.closed == 1


async def test_what_is_ready_first_comes_first() -> None:
    slow, fast = Scripted(last("slow", usage(1, 1)), pause=0.05), Scripted(last("fast", usage(1, 1)))
    async with aclosing(MergedDeltas([slow, fast], 1)) as merged:
        assert [delta.text async for delta in merged] == ["fast", "slow"]


async def test_an_error_of_one_is_the_error_of_all() -> None:
    fine, broken = Scripted(Delta(text="a"), pause=0.01), Scripted(Unavailable("died", "engine_died"))
    merged = MergedDeltas([fine, broken], 1)
    with pytest.raises(Unavailable, match="died"):
        async with aclosing(merged):
            async for _ in merged:
                pass
    assert (fine.closed, broken.closed) == (1, 1)


async def test_one_that_only_stops_leaves_the_whole_without_usage() -> None:
    """The front door then says that the answer is not complete."""
    async with aclosing(MergedDeltas([Scripted(last("a", usage(1, 1))), Scripted()], 1)) as merged:
        assert [delta.usage async for delta in merged] == [None]


async def test_nobody_pulls_far_ahead_of_a_slow_reader() -> None:
    endless = [Scripted(*(Delta(text="x") for _ in range(1000))) for _ in range(3)]
    async with aclosing(MergedDeltas(endless, 1)) as merged:
        await anext(merged)
        await asyncio.sleep(0.05)
        assert sum(part.pulled for part in endless) < 12


def route(*order: str) -> Route:
    return Route(order=order, reason=f"{order[0]}: because", assessment=None)


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ([("7b", "13b", "70b")], [("7b", "13b", "70b")]),
        ([("7b", "13b"), ("13b", "7b")], [("13b", "7b"), ("13b", "7b")]),
        ([("70b", "13b", "7b"), ("13b",)], [("70b", "13b", "7b"), ("13b",)]),  # which is all that one fits
        ([("7b",), ("70b",)], [("7b",), ("70b",)]),
    ],
)
def test_all_run_on_the_dearest_tier_that_one_needs(
    orders: Sequence[tuple[str, ...]], expected: Sequence[tuple[str, ...]]
) -> None:
    routes = on_one_tier([route(*order) for order in orders], ["7b", "13b", "70b"])
    assert [made.order for made in routes] == expected


async def test_work_side_by_side_ends_before_its_error_is_raised() -> None:
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.append("long")

    async def broken() -> None:
        raise Unavailable("no")

    with pytest.raises(Unavailable):
        await together([long(), broken()])
    assert ended == ["long"]


async def test_a_single_answer_stays_as_it_is() -> None:
    answer = Answer(id="r", created=1, tier="7b", route=route("7b"), session=None, deltas=Scripted())
    assert as_one([answer], 3) is answer

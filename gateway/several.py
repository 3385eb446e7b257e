"""Several prompts in one call: they run side by side on one tier, and their answers are told as one."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import structs

from backends.backend import Delta, Usage
from gateway.request import Answer, Deltas, Route


def on_one_tier(routes: Sequence[Route], tiers: Sequence[str]) -> Sequence[Route]:
    """All routes by way of the dearest tier that one of them begins with: it is good enough for every one.

    `tiers`: their names, the cheapest first. A route keeps to the tiers of its own order, which its prompt fits.
    """
    if len(routes) == 1:
        return routes
    dearest = max(routes, key=lambda route: tiers.index(route.order[0]))
    return [
        structs.replace(route, order=order, reason=dearest.reason)
        if (order := tuple(tier for tier in dearest.order if tier in route.order))
        else route
        for route in routes
    ]


async def together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All of it side by side. Raises what fails first, when the rest has ended too."""
    if len(work) == 1:
        return await work[0]
    try:
        async with asyncio.TaskGroup() as group:
            for part in work:
                group.create_task(part)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def as_one(answers: Sequence[Answer], n: int) -> Answer:
    """`n`: answers to each prompt; those to prompt i have the indices from i * n on."""
    first = answers[0]
    if len(answers) == 1:
        return first
    return dataclasses.replace(
        first,
        spelled=tuple(text for answer in answers for text in answer.spelled),
        deltas=MergedDeltas([answer.deltas for answer in answers], n),
    )


class MergedDeltas:
    """Deltas as they come, from whichever answer. The last of all has the usage of all. See `gateway.request.Deltas`.

    Nothing is pulled far ahead of the reader: a slow client slows the work, not memory.
    """

    def __init__(self, parts: Sequence[Deltas], n: int) -> None:
        self._parts = parts
        self._n = n
        self._usage: list[Usage] = []
        self._running = len(parts)
        # None: one has ended.
        self._queue: asyncio.Queue[Delta | Exception | None] = asyncio.Queue(len(parts))
        self._pumps = [asyncio.ensure_future(self._pump(number)) for number in range(len(parts))]

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        while self._running and (told := await self._queue.get()) is None:
            self._running -= 1
        if not self._running or told is None:
            raise StopAsyncIteration
        if isinstance(told, Exception):
            raise told
        if told.usage is None:
            return told
        self._usage.append(told.usage)
        complete = len(self._usage) == len(self._parts)
        return msgspec.structs.replace(told, usage=_sum(self._usage) if complete else None)

    async def _pump(self, number: int) -> None:
        try:
            async for delta in self._parts[number]:
                index = number * self._n + delta.index
                await self._queue.put(msgspec.structs.replace(delta, index=index))
            await self._queue.put(None)
        except Exception as error:
            await self._queue.put(error)

    async def remember(self) -> None:
        for part in self._parts:
            await part.remember()

    async def aclose(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for part in self._parts:
            await part.aclose()


def _sum(usages: Iterable[Usage]) -> Usage:
    prompt, completion, cached = zip(
        *((u.prompt_tokens, u.completion_tokens, u.cached_tokens) for u in usages), strict=True
    )
    return Usage(prompt_tokens=sum(prompt), completion_tokens=sum(completion), cached_tokens=sum(cached))

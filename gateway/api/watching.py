"""Work that stops when there is no reason left to do it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

from starlette.types import Receive

from gateway.errors import ClientGone

Result = TypeVar("Result")
Watcher = Coroutine[Any, Any, NoReturn]


async def watched(work: Coroutine[Any, Any, Result], *watchers: Watcher) -> Result:
    """The result of `work`, unless a watcher raises first: then `work` is cancelled, awaited, and that is raised.

    When it returns, nothing of it runs any more, also where the caller itself is cancelled.
    """
    working = asyncio.ensure_future(work)
    tasks: list[asyncio.Future[Any]] = [working, *(asyncio.ensure_future(watcher) for watcher in watchers)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first: asyncio.Future[Result] = working if working in done else done.pop()
        return await first  # a watcher only raises
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def disconnected(receive: Receive) -> NoReturn:
    """Waits for the client to close its connection, then raises ClientGone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone

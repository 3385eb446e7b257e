"""Work that stops when there is no reason left to do it.

The work runs in the task that asks for it, and who watches is called rather than a task of its own: a request has
several watchers, and setting them up cost more than a chunk of its stream.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from starlette.types import Receive, Scope

from gateway.errors import ClientGone

Result = TypeVar("Result")
Strike = Callable[[Exception], None]
"""Ends the work with this error. Only the first one counts."""
End = Callable[[], object]
Watcher = Callable[[Strike], End]
"""Begins to watch; returns what ends that."""


async def watched(work: Coroutine[Any, Any, Result], *watchers: Watcher) -> Result:
    """The result of `work`, unless a watcher strikes first: then `work` is cancelled, awaited, and the error is raised.

    When it returns, nothing of the work runs any more, also where the caller itself is cancelled.
    """
    task = asyncio.current_task()
    assert task is not None
    before, struck = task.cancelling(), list[Exception]()

    def strike(error: Exception) -> None:
        if not struck and not ended:
            struck.append(error)
            if working:
                task.cancel()

    working = ended = False
    ends = [watcher(strike) for watcher in watchers]
    try:
        if struck:
            work.close()
            raise struck[0]
        working = True
        result = await work
    except BaseException:
        if working and struck and task.cancelling() - 1 <= before:
            raise struck[0] from None
        raise  # the work's own, or somebody else has cancelled us, too
    finally:
        ended = True
        for end in ends:
            end()
        if working and struck:
            task.uncancel()
    if struck:
        raise struck[0]
    return result


class Line:
    """A client's connection, as far as its end can be heard of. `gateway.protocol` has one for each."""

    KEY = "headrace.line"  # of a scope

    def __init__(self) -> None:
        self._lost = False
        self._strikes: set[Strike] = set()

    def lost(self) -> None:
        """Nobody is there any more."""
        self._lost = True
        for strike in list(self._strikes):
            strike(ClientGone())

    def watch(self, strike: Strike) -> End:
        """A `Watcher`."""
        self._strikes.add(strike)
        if self._lost:
            strike(ClientGone())
        return partial(self._strikes.discard, strike)


def disconnected(scope: Scope, receive: Receive) -> Watcher:
    """Strikes with ClientGone when the client closes its connection. The body must have been read.

    Servers other than ours tell of it only to who waits for it, which takes a task.
    """
    line: Line | None = scope.get(Line.KEY)
    return _waiting(receive) if line is None else line.watch


def _waiting(receive: Receive) -> Watcher:

    def watch(strike: Strike) -> End:
        async def look() -> None:
            try:
                while (await receive())["type"] != "http.disconnect":
                    pass
            except Exception as error:
                strike(error)
            else:
                strike(ClientGone())

        return asyncio.create_task(look()).cancel

    return watch

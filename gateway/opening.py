"""A fresh session is written down while its first answer is already on its way.

Its id is known before. Nothing of the answer is told before the session can be gone on with, and an answer whose
session cannot be opened is not waited for.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.recall import Memory, Recalled
from gateway.watching import End, Strike, watched

T = TypeVar("T")


class Opening:
    """Of the session of one request, where it is fresh; of any other there is nothing to wait for."""

    def __init__(self, memory: Memory, tenant: str, recalled: Recalled) -> None:
        self._memory = memory
        self._tenant = tenant
        self._session = recalled.session if recalled.fresh else None
        self._writing: asyncio.Task[None] | None = None

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which has to wait for `done`. Raises ApiError 503 as soon as it is in vain."""
        if self._session is None:
            return await work
        self._writing = asyncio.create_task(self._memory.open(self._tenant, self._session))
        try:
            return await watched(work, self._fails)
        finally:
            self._writing.cancel()  # which changes nothing where it is done
            await asyncio.gather(self._writing, return_exceptions=True)

    async def done(self) -> None:
        """Raises ApiError 503."""
        if self._writing is not None:
            await asyncio.shield(self._writing)

    def _fails(self, strike: Strike) -> End:
        """A `Watcher`."""
        assert self._writing is not None
        writing = self._writing

        def look(ended: asyncio.Task[None]) -> None:
            if not ended.cancelled() and isinstance(error := ended.exception(), Exception):
                strike(error)

        writing.add_done_callback(look)
        return lambda: writing.remove_done_callback(look)

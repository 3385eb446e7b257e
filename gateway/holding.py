"""An answer that is held back: its deltas are kept, and its signs of confidence are watched."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import numpy as np

from backends.backend import Delta, Usage
from classifier.confidence import Finish, Trace
from gateway.judges import Brief
from gateway.judging import Seen
from gateway.stakes import Onward, Sight


class Ahead:
    """The deltas of an attempt, which can be waited for a while without ending it. See `gateway.request.Deltas`."""

    def __init__(self, deltas: AsyncGenerator[Delta, None]) -> None:
        self._deltas = deltas
        self._next: asyncio.Future[Delta] | None = None

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        if self._next is None:
            return await anext(self._deltas)
        coming, self._next = self._next, None
        return await coming

    async def within(self, seconds: float | None) -> Delta | None:
        """The next one; None where none has come by then, and a later call may still get it.

        Raises StopAsyncIteration at the end, BackendError as the attempt.
        """
        if seconds is None:
            return await anext(self)
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._deltas))
        done, _ = await asyncio.wait({self._next}, timeout=max(0.0, seconds))
        return await anext(self) if done else None

    async def aclose(self) -> None:
        """Idempotent."""
        if self._next is not None:
            coming, self._next = self._next, None
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await self._deltas.aclose()


class Held:
    """What has come of one answer, and what the rules of `brief` say of it: of several answers, of the first."""

    def __init__(self, brief: Brief | None, able: Sequence[str] = ()) -> None:
        """`able`: the dearer tiers that could take over."""
        self.deltas: list[Delta] = []
        self.sight: Sight | None = None  # what was last estimated
        self.onward: Onward | None = None  # likewise
        self._able = able
        self._brief = brief
        self._after = list(brief.after) if brief is not None else []  # still to come
        self._free: list[tuple[float, float, float]] = []
        self._forced = 0
        self._told = 0  # tokens whose text has come
        self._finish: Finish | None = None

    @property
    def last(self) -> Delta | None:
        """The final delta, where it has come."""
        last = self.deltas[-1] if self.deltas else None
        return last if last is not None and last.usage is not None else None

    @property
    def tokens(self) -> int:
        """Made so far, as far as anybody here can tell."""
        return max(len(self._free) + self._forced, self._told)

    def used(self, prompt_tokens: int) -> Usage:
        """What the attempt has used if it ends now. `prompt_tokens`: by our own count."""
        if self.last is not None and self.last.usage is not None:
            return self.last.usage
        cached = max((delta.cached for delta in self.deltas), default=0)
        return Usage(prompt_tokens=prompt_tokens, completion_tokens=self.tokens, cached_tokens=cached)

    def take(self, delta: Delta) -> None:
        self.deltas.append(delta)
        self._told += delta.tokens
        for signal in delta.signals:
            if signal.forced:
                self._forced += 1
            else:
                unknown = float("nan")
                margin = unknown if signal.margin is None else signal.margin
                self._free.append(
                    (signal.logprob, margin, unknown if signal.entropy is None else signal.entropy)
                )
        if not delta.index and delta.finish in ("stop", "length", "tool_calls"):
            self._finish = delta.finish
        if self._brief is not None:
            self._estimate(self._brief)

    def _estimate(self, brief: Brief) -> None:
        """At each number of tokens that has a rule, and at the end."""
        reached = [n for n in self._after if n <= len(self._free)]
        self._after = self._after[len(reached) :]
        if self.last is not None:
            self._keep(brief, None, len(self._free))
        elif reached:
            self._keep(brief, reached[-1], reached[-1])

    def _keep(self, brief: Brief, after: int | None, tokens: int) -> None:
        logprobs, margins, entropies = np.array(self._free, np.float64).reshape(-1, 3).T
        trace = Trace(logprobs, margins, entropies, self._forced)
        found = brief.confidence.estimate(brief.task, after, trace, self._finish, brief.good)
        if found is not None:
            self.sight = Sight(confidence=found, tokens=tokens, ended=after is None)
            self.onward = brief.stakes.onward(self.sight, self._able)

    def seen(self, seconds: float, *, warming: bool) -> Seen:
        """`seconds` since its first delta."""
        assert self._brief is not None
        due = bool(self._after) or (not self._brief.after and self._brief.confidence.at_end(self._brief.task))
        return Seen(
            margin=None if self.onward is None else self.onward.margin,
            tokens=self.tokens,
            seconds=seconds,
            due=due,
            ended=self.last is not None,
            warming=warming,
        )

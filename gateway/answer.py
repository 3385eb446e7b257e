"""The running answer: passes deltas on, and when it ends, however it ends, remembers and settles exactly once.

A client that has seen the end may go on from it, so what was said is stored before; nobody waits for the settling.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence

import msgspec

from backends.backend import BackendError, CallPiece, Delta, Rejected, Usage
from backends.tools.calls import joined
from gateway.books import Books
from gateway.cascade import Attempt
from gateway.ledger import ANSWERED
from gateway.metering import Charge, Meter
from gateway.metrics import Metrics
from gateway.recall import Memory, Recalled
from gateway.request import Request
from gateway.telemetry import Traces
from gateway.turns import to_calls
from sessions import Turn

_PLACE = re.compile(r"at \d+\(\d+\): (failed to compile JSON schema: )?")  # in a grammar's text


class Epilogue(msgspec.Struct, frozen=True, kw_only=True):
    """What is left to do when an answer has ended."""

    request: Request
    recalled: Recalled
    charge: Charge
    attempt: Attempt
    prompt_tokens: int
    started: float  # time.monotonic() at the request's arrival
    first_text: float  # seconds from there to the first delta
    books: Books
    meter: Meter
    memory: Memory
    metrics: Metrics
    traces: Traces

    @property
    def seconds(self) -> float:
        """Since the request came."""
        return time.monotonic() - self.started

    async def settle(self, last: Delta | None, seconds: float, tokens: int, cached: int) -> None:
        """`last`: the final delta, None when the answer was cut short after `tokens` tokens and `seconds`."""
        usage = last.usage if last is not None else None
        if usage is None:
            usage = Usage(prompt_tokens=self.prompt_tokens, completion_tokens=tokens, cached_tokens=cached)
        used = self.books.answered(self.request, self.attempt.tier, self.attempt.entry, last, usage)
        with self.traces.span("headrace.settle", tokens=used.tokens):
            await self.meter.settle(self.charge, used)
        if last is not None:
            self._measure(last, usage, seconds)

    async def remember(self, text: str, calls: Sequence[CallPiece], *, complete: bool) -> None:
        """The calls of an answer that was cut short are forgotten: nobody will answer them."""
        turn = Turn(
            role="assistant",
            content=text,
            tier=self.attempt.tier.name,
            partial=not complete,
            calls=to_calls(joined(calls)) if complete else (),
        )
        await self.memory.remember(self.request, self.recalled, turn)

    def _measure(self, last: Delta, usage: Usage, seconds: float) -> None:
        replica, asked = self.attempt.replica.name, self.request
        self.metrics.generation(replica, usage, last.timings, asked.n, asked.max_tokens)
        self.metrics.answered(self.attempt.tier.name, self.first_text, seconds, usage.completion_tokens)


class AnswerStream:
    """Iterates an attempt's deltas, those held included. See `gateway.request.Deltas`.

    A plain generator would not do: closed before its first pull, it would skip its own `finally`.
    """

    def __init__(self, attempt: Attempt, epilogue: Epilogue) -> None:
        self._attempt = attempt
        self._epilogue = epilogue
        self._held = deque(attempt.held)
        self._text: list[str] = []
        self._calls: list[CallPiece] = []
        self._tokens = 0
        self._cached = 0  # of the prompt, as far as it is told before the end
        self._last: Delta | None = None
        self._seconds: float | None = None  # of the whole answer, once it is complete
        self._remembered = self._settled = False
        self._ending: asyncio.Task[None] | None = None

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        if self._last is not None or self._ending is not None:
            raise StopAsyncIteration
        try:
            delta = self._held.popleft() if self._held else await anext(self._attempt.rest)
        except BaseException as ending:  # an early end, an error of the backend, or a cancellation
            if isinstance(ending, BackendError):
                self._attempt.entry.ends(ending.code)
            await self.aclose()
            if isinstance(ending, Rejected):
                raise in_the_clients_words(ending, self._epilogue.request) from ending
            raise
        if not delta.index:  # of several answers the first is remembered
            self._text.append(delta.text)
            self._calls.extend(delta.calls)
        self._tokens += delta.tokens
        self._cached = max(self._cached, delta.cached)
        if delta.usage is not None:
            self._complete(delta)
        return delta

    def _complete(self, last: Delta) -> None:
        self._last, self._seconds = last, self._epilogue.seconds
        self._attempt.entry.ends(ANSWERED)

    async def remember(self) -> None:
        if not self._remembered:
            self._remembered = True
            said = "".join(self._text)
            await self._epilogue.remember(said, self._calls, complete=self._last is not None)

    async def aclose(self) -> None:
        if self._last is not None and self._ending is None:
            if not self._settled:
                self._settled = True
                await self._end()
            return
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        if self._ending.done():
            return self._ending.result()
        # A client that goes away cancels us; what has to be done after an answer is done all the same.
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        await self._attempt.rest.aclose()
        for delta in self._held:  # made, though nobody has read it
            self._tokens += delta.tokens
            self._cached = max(self._cached, delta.cached)
        seconds = self._epilogue.seconds if self._seconds is None else self._seconds
        await self._epilogue.settle(self._last, seconds, self._tokens, self._cached)
        await self.remember()


def in_the_clients_words(error: Rejected, request: Request) -> Rejected:
    """Of a grammar the client knows only what it was made of, and no places in one that it has not written itself. Some
    prove to be too much when the answer has begun."""
    reason = error.message.removeprefix("grammar: ")
    if reason == error.message:
        return error
    if request.grammar is None or request.grammar.kind != "lark":
        reason = _PLACE.sub("", reason, count=1)
    field = "tools" if request.grammar is None else request.grammar_field
    return Rejected(f"{field}: {reason}", error.code)

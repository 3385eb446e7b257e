"""The running answer: passes deltas on, and when it ends, however it ends, settles and remembers exactly once."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from backends.backend import BackendError, CallPiece, Delta, Rejected, Usage
from backends.tools.calls import joined
from gateway.cascade import Attempt
from gateway.config import Price
from gateway.limits import Amount
from gateway.metering import Charge, Meter
from gateway.metrics import Metrics
from gateway.prices import billionths, cost
from gateway.recall import Memory, Recalled
from gateway.request import Request
from gateway.turns import to_calls
from sessions import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """What is left to do when an answer has ended."""

    request: Request
    recalled: Recalled
    charge: Charge
    attempt: Attempt
    largest: Price  # of the largest tier
    prompt_tokens: int
    started: float  # time.monotonic() at the request's arrival
    first_text: float  # seconds from there to the first delta
    meter: Meter
    memory: Memory
    metrics: Metrics

    async def __call__(self, last: Delta | None, text: str, calls: Sequence[CallPiece], tokens: int) -> None:
        """`last`: the final delta, None when the answer was cut short after `tokens` tokens.

        The calls of such an answer are forgotten: nobody will answer them.
        """
        usage = last.usage if last is not None else None
        if usage is None:
            usage = Usage(prompt_tokens=self.prompt_tokens, completion_tokens=tokens)
        await self.meter.settle(self.charge, self._used(usage))
        self._measure(last, usage)
        tier = self.attempt.tier.name
        turn = Turn(
            role="assistant",
            content=text,
            tier=tier,
            partial=last is None,
            calls=() if last is None else to_calls(joined(calls)),
        )
        await self.memory.remember(self.request, self.recalled, turn)

    def _used(self, usage: Usage) -> Amount:
        return Amount(
            tokens=usage.prompt_tokens + usage.completion_tokens,
            input=usage.prompt_tokens,
            output=usage.completion_tokens,
            money=billionths(cost(self.attempt.tier.price, usage)),
        )

    def _measure(self, last: Delta | None, usage: Usage) -> None:
        tier, tenant = self.attempt.tier.name, self.request.tenant.name
        spent = cost(self.attempt.tier.price, usage)
        self.attempt.entry.settled(last, usage, spent)
        largest = cost(self.largest, usage)
        self.request.ledger.largest += largest  # several prompts of one call share it
        self.metrics.tokens(tenant, tier, usage)
        self.metrics.money(tenant, tier, spent, largest)
        if last is not None:
            seconds = time.monotonic() - self.started
            self.metrics.generation(self.attempt.replica.name, usage, last.timings)
            self.metrics.answered(tier, self.first_text, seconds, usage.completion_tokens)


class AnswerStream:
    """Iterates an attempt's deltas, the first one included. See `gateway.request.Deltas`.

    A plain generator would not do: closed before its first pull, it would skip its own `finally`.
    """

    def __init__(self, attempt: Attempt, epilogue: Epilogue) -> None:
        self._attempt = attempt
        self._epilogue = epilogue
        self._first: Delta | None = attempt.first
        self._text: list[str] = []
        self._calls: list[CallPiece] = []
        self._tokens = 0
        self._last: Delta | None = None
        self._ending: asyncio.Task[None] | None = None

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        try:
            delta = await self._pull()
        except BaseException as ending:  # the end, an error of the backend, or a cancellation
            if isinstance(ending, BackendError):
                self._attempt.entry.failed(ending.code)
            await self.aclose()
            if isinstance(ending, Rejected):
                raise in_the_clients_words(ending, self._epilogue.request) from ending
            raise
        if not delta.index:  # of several answers the first is remembered
            self._text.append(delta.text)
            self._calls.extend(delta.calls)
        self._tokens += delta.tokens
        if delta.usage is not None:
            self._last = delta
        return delta

    async def _pull(self) -> Delta:
        if self._last is not None or self._ending is not None:
            raise StopAsyncIteration
        if self._first is not None:
            delta, self._first = self._first, None
            return delta
        return await anext(self._attempt.rest)

    async def aclose(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        # A client that goes away cancels us; what has to be done after an answer is done all the same.
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        await self._attempt.rest.aclose()
        if self._first is not None:  # made, though nobody has read it
            self._tokens += self._first.tokens
        await self._epilogue(self._last, "".join(self._text), self._calls, self._tokens)


def in_the_clients_words(error: Rejected, request: Request) -> Rejected:
    """Of a grammar the client knows only what it was made of. Some prove to be too much when the answer has begun."""
    reason = error.message.removeprefix("grammar: ")
    if reason == error.message:
        return error
    field = "tools" if request.grammar is None else request.grammar_field
    return Rejected(f"{field}: {reason}", error.code)

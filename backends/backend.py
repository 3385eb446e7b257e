"""The protocol that every backend implements, and the types that cross it.

Errors:
    BackendError                 the attempt failed; `code` is for the client, `retryable` before the first byte
    ├── Unavailable              engine died, connection refused, upstream ended early
    ├── Overloaded               the queue is full
    ├── DeadlineExceeded         the request's time is used up
    └── Rejected                 the request itself cannot run here (context length, invalid field)
"""

from collections.abc import AsyncGenerator, Iterator
from typing import Literal, Protocol

import msgspec

from backends.prompt import ChatMessage, Prompt
from backends.tokenizer import Tokenizer
from backends.tools.calls import CallPiece
from backends.wire import FinishReason, Sampling, Signal, Timings, Traffic

__all__ = [
    "Backend",
    "BackendError",
    "CallPiece",
    "ChatMessage",
    "DeadlineExceeded",
    "Delta",
    "Finish",
    "FinishReason",
    "Generation",
    "Overloaded",
    "Prompt",
    "Rejected",
    "Sampling",
    "Signal",
    "Timings",
    "TokenScore",
    "Traffic",
    "Unavailable",
    "Usage",
]

Finish = FinishReason | Literal["tool_calls"]
"""`tool_calls`: the model waits for the results of what it has called."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one prompt on one backend."""

    id: str
    prompt: Prompt
    ids: list[int] | None  # the prompt in this backend's tokens; None where it has no known tokenizer
    sampling: Sampling
    salt: bytes = b""
    tenant: str = ""  # opaque tag, see `backends.wire.Submit`; like the five below it is for our own engines
    session: str = ""
    task: str = ""
    weight: float = 1.0
    traffic: Traffic = "interactive"
    priority: int = 0
    timeout: float | None = None  # seconds
    traceparent: str | None = None  # W3C trace context of the attempt, for remote backends
    steps: bool = False  # of our own engines: tell each of them in the timings


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one generation; `cached_tokens` is the part of the prompt that was not computed again."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class TokenScore(msgspec.Struct, frozen=True, kw_only=True):
    """One token alone, and how likely the model held it.

    `text` has U+FFFD where the token is no whole character; a control token has its name there, and no `data`.
    """

    text: str
    data: bytes
    logprob: float | None  # natural logarithm, of the raw distribution; None for the first token of a prompt
    top: "tuple[TokenScore, ...]" = ()  # the likeliest tokens, best first; theirs are empty


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of an answer. The last one of each answer has `finish`; the last of all, and only it, has `usage`.

    `calls`: where tools were offered, what the model calls, which follows on `text`.
    `scores`, where they were asked for: of the tokens that the answer is made of, those of calls included. Joined,
    those of an answer are all that it says; but for stop strings, which may cut a token, so is their `data`.
    `signals`, where they were asked for: of the tokens made since the last delta of the answer, whether their text is
    told already or not. `cached`: of the prompt, as far as is known by then.
    `stopped_by`: the stop string that ended the answer, None where none did or the server does not tell.
    """

    index: int = 0  # which of several answers to the prompt
    text: str = ""
    calls: tuple[CallPiece, ...] = ()
    tokens: int = 0
    scores: tuple[TokenScore, ...] = ()
    signals: tuple[Signal, ...] = ()
    cached: int = 0
    prompt: tuple[TokenScore, ...] = ()  # scores of the whole prompt, in the first delta of answer 0
    finish: Finish | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    stopped_by: str | None = None
    more: bool = False  # the next one is there already: whoever sends them on can do so in one piece


def at_once(deltas: Iterator[Delta]) -> Iterator[Delta]:
    """What has come at once, in as few deltas as say the same: whoever is behind catches up by it. Each but the last
    tells that there is `more`. Raises what `deltas` raises, behind all that came before."""
    before: Delta | None = None
    failure: BackendError | None = None
    try:
        for delta in deltas:
            if before is None:
                before = delta
            elif _goes_on(before, delta):
                before = msgspec.structs.replace(
                    delta, text=before.text + delta.text, tokens=before.tokens + delta.tokens
                )
            else:
                yield msgspec.structs.replace(before, more=True)
                before = delta
    except BackendError as error:
        failure = error
    if before is not None:
        yield before
    if failure is not None:
        raise failure


def _goes_on(before: Delta, delta: Delta) -> bool:
    """Whether both could have been one. What is told of single tokens stays with them."""
    plain = not (before.calls or before.scores or before.signals or before.prompt or before.finish)
    return plain and before.index == delta.index and not (delta.scores or delta.signals or delta.prompt)


class Backend(Protocol):
    """One replica of one model."""

    @property
    def name(self) -> str:
        """Unique in this gateway: `7b/0`."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None for a remote server whose tokenizer is unknown."""

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""

    @property
    def takes_tools(self) -> bool:
        """Whether prompts may speak of tools: the model is told of them, and its calls are understood."""

    def refusal(self, prompt: Prompt, sampling: Sampling) -> "Rejected | None":
        """What `stream` would raise at once of a request that has something in it which is never honoured here."""

    @property
    def available(self) -> bool:
        """Whether an attempt now has a chance: the engine answers, the breaker is closed."""

    @property
    def recovering(self) -> bool:
        """Whether it is not available but expected back by itself: an engine that is being started again."""

    @property
    def tripped(self) -> bool:
        """Whether it is left alone because it has failed: the breaker is open. Never one of our own engines."""

    @property
    def in_flight(self) -> int:
        """Generations that this gateway has running here."""

    def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        """Run it. Closing the generator (use `contextlib.aclosing`) aborts the work.

        Raises BackendError; after the first Delta too, when the backend dies in mid-answer.
        """

    async def warm(self, generation: Generation) -> bool:
        """Compute its prompt into the cache, after all that somebody waits for, so that running it begins sooner.

        Cancelling drops what is left to do. False where this kind of backend cannot. Raises BackendError.
        """

    async def start(self) -> None:
        """Connect; returns when the replica can answer. Raises Unavailable."""

    async def close(self) -> None:
        """Let go of connections. Generations still running raise Unavailable."""


class BackendError(Exception):
    """An attempt failed. `message` is fit for the client: no prompt text, no addresses."""

    code = "backend_error"
    retryable = True
    timings: "Timings | None" = None
    """Where an engine of our own has got to with it."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class Unavailable(BackendError):
    """The replica is gone: engine died, connection refused, upstream ended early."""

    code = "engine_died"


class Overloaded(BackendError):
    """The replica's queue is full. `retry_after`: seconds, where a remote server has named them."""

    code = "server_is_overloaded"

    def __init__(self, message: str, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, code)
        self.retry_after = retry_after


class DeadlineExceeded(BackendError):
    """The request's time is used up."""

    code = "deadline_exceeded"
    retryable = False


class Rejected(BackendError):
    """The request cannot run on this model, however often it is tried."""

    code = "context_length_exceeded"
    retryable = False

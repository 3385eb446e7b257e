"""What a dialect is: a way to ask for an answer and to give it, in one piece or in events."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import msgspec

from backends.backend import Delta, Unavailable, Usage
from backends.prompt import Prompt
from gateway.config import Tenant
from gateway.errors import ApiError
from gateway.request import Answer, Endpoint, Request

Chunk = dict[str, Any]
Finish = Literal["stop", "length", "tool_calls"]


class Body(Protocol):
    """What every body says, whatever its dialect."""

    @property
    def model(self) -> str: ...

    @property
    def stream(self) -> bool: ...

    @property
    def service_tier(self) -> str: ...

    def to_prompt(self) -> Prompt: ...

    def sampled(self, request: Request) -> Request:
        """`request` with what the body says of sampling, length and form. Raises ApiError 400."""
        ...


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer ended, the last of several. `stopped_by`: the stop string, where one did and that is known.

    `usage`: of all of them.
    """

    index: int = 0
    finish: Finish
    usage: Usage
    stopped_by: str | None = None


def finish_of(delta: Delta) -> Finish | None:
    """Raises Unavailable where an answer ended for no reason that a client may be told as its end."""
    match delta.finish:
        case None | "stop" | "length" | "tool_calls" as finish:
            return finish
    raise Unavailable(f"the engine ended the answer: {delta.finish}", "engine_error")


class Rendering(ABC):
    """One answer in the words of a dialect, which may differ by what was asked.

    Streamed: `opening`, `piece`s, `closing`, and `farewell` once the answer is remembered, as the next
    turn may follow at once. `broken` ends a stream at any time, also before its opening. `model` in an answer is the
    tier that gave it, whatever name was asked for.
    """

    @abstractmethod
    def opening(self, answer: Answer) -> Sequence[Chunk]: ...

    @abstractmethod
    def piece(self, delta: Delta) -> Sequence[Chunk]:
        """For deltas with text, calls or scores, and for the end of each of several answers but the last."""

    def ready(self, delta: Delta) -> bytes | None:
        """The JSON of the one event that `piece` would give, where that can be told without making the event."""
        return None

    @abstractmethod
    def closing(self, ending: Ending) -> Sequence[Chunk]: ...

    def farewell(self) -> Sequence[Chunk]:
        return ()

    @abstractmethod
    def broken(self, error: ApiError) -> Sequence[Chunk]: ...

    @abstractmethod
    def whole(self, answer: Answer, deltas: Sequence[Delta], ending: Ending) -> Chunk: ...


B = TypeVar("B", bound=Body)
R = TypeVar("R", bound=Rendering)


class Dialect(ABC, Generic[B, R]):
    """`typed`: events have names, and the last one tells of the end; else they end with [DONE].

    `sessions`: whether `x-session-id` means something.
    """

    endpoint: ClassVar[Endpoint]
    typed: ClassVar[bool] = False
    sessions: ClassVar[bool] = True

    @abstractmethod
    def decode(self, data: bytes) -> B:
        """Raises ApiError 400 naming the field. May run in a thread."""

    @abstractmethod
    async def open(self, body: B, tenant: Tenant) -> tuple[Prompt, R]:
        """What the model is asked, and how its answer will be told. Raises ApiError."""

    def requests(self, body: B, request: Request, rendering: R) -> Sequence[Request]:
        """What is to be run: one request but where a body holds several prompts. The first is `request`, with what
        only the dialect knows of it."""
        return (request,)

    async def keep(self, request: Request, rendering: R) -> None:
        """Called once when an answer is over, however it ended, before the client is told. Does not raise."""

"""Conversations that the gateway remembers: `Session`, `Turn`, and the store protocol.

A session belongs to one tenant. Another tenant's id is answered exactly like an unknown one.
"""

import secrets
from collections.abc import Iterator
from typing import Protocol

import msgspec

TURN_SIZE = 64  # what a turn without words counts as


class Call(msgspec.Struct, frozen=True):
    """A tool call that a model made. `arguments`: JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation, as it was said."""

    role: str
    content: str
    name: str | None = None
    tier: str | None = None  # who answered, for role "assistant"
    partial: bool = False  # the stream was cut before the answer was complete
    calls: tuple[Call, ...] = ()  # of role "assistant"
    answers: str | None = None  # of role "tool": the id of the call that it is the result of


class Session(msgspec.Struct, frozen=True):
    """A conversation so far. `version` grows by one with each append.

    A turn keeps its place for ever: those of `erased` turns stay empty.
    """

    id: str
    turns: tuple[Turn, ...] = ()
    version: int = 0
    erased: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Characters of all that was said, and some for each turn."""
        return sum(
            TURN_SIZE + len(turn.content) + sum(len(call.arguments) for call in turn.calls)
            for turn in self.turns
        )

    @property
    def placed(self) -> Iterator[tuple[int, Turn]]:
        """The turns, each with its place."""
        empty = frozenset(self.erased)
        places = (place for place in range(len(self.turns) + len(empty)) if place not in empty)
        return zip(places, self.turns, strict=True)


class SessionNotFound(KeyError):
    """The tenant has no session of this id."""


class SessionConflict(Exception):
    """Somebody else came first; recall the session and try again."""


class SessionStoreUnavailable(Exception):
    """The store does not answer. Never answered with an empty history."""


class SessionDamaged(SessionStoreUnavailable):
    """The store answers, but what it holds of this session cannot be used."""


class SessionStore(Protocol):
    """Appending is optimistic: `expected` is the version that the caller has read."""

    async def create(self, tenant: str, session_id: str | None = None) -> Session:
        """An empty one. `session_id`: a new one, made by `new_session_id`, as by default."""
        ...

    async def get(self, tenant: str, session_id: str) -> Session:
        """Raises SessionNotFound, SessionStoreUnavailable."""
        ...

    async def append(self, tenant: str, session_id: str, turns: tuple[Turn, ...], expected: int) -> None:
        """The history is not read for it, so a turn of a long conversation costs no more than its first.

        Raises SessionNotFound, SessionConflict, SessionStoreUnavailable.
        """
        ...

    async def replace(
        self, tenant: str, session_id: str, place: int, before: Turn, after: Turn | None
    ) -> Session:
        """Put `after` in place of the turn `before`, which is not kept; None erases it.

        Neither version nor time to live change. Raises as `append`, SessionConflict where another turn stands there,
        or none.
        """
        ...

    async def list(self, tenant: str) -> tuple[str, ...]:
        """Ids, the latest used first."""
        ...

    async def delete(self, tenant: str, session_id: str) -> None:
        """Raises SessionNotFound, SessionStoreUnavailable."""
        ...

    async def close(self) -> None: ...


def new_session_id() -> str:
    """128 random bits."""
    return "sess_" + secrets.token_hex(16)

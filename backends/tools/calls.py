"""The calls in an answer, piece by piece and whole."""

import secrets
from collections.abc import Iterable

import msgspec

from backends.prompt import ToolCall


class CallPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a call. The first one of each call, and only that, has `id` and `name`.

    The joined `arguments` of a call are JSON text as the model wrote it: valid, unless the answer was cut off or the
    model can no better.
    """

    index: int  # which of the answer's calls, from 0; they follow one another
    id: str | None = None
    name: str | None = None
    arguments: str = ""


def new_call_id() -> str:
    """96 random bits."""
    return f"call_{secrets.token_hex(12)}"


def joined(pieces: Iterable[CallPiece]) -> tuple[ToolCall, ...]:
    """The calls that these pieces of one answer make up, in order."""
    names: dict[int, tuple[str, str]] = {}
    arguments: dict[int, list[str]] = {}
    for piece in pieces:
        if piece.id is not None and piece.name is not None:
            names[piece.index] = piece.id, piece.name
        arguments.setdefault(piece.index, []).append(piece.arguments)
    return tuple(
        ToolCall(id=id, name=name, arguments="".join(arguments[index]))
        for index, (id, name) in sorted(names.items())
    )

"""The tool calls that a remote server streams, made uniform.

Servers differ. Some give every call the index 0, or none at all; some repeat id and name with each piece; some send no
id, or arguments as an object; some send a second call where none was wanted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from backends.tools.calls import CallPiece, new_call_id


class Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None  # text, or what it would say


class CallDelta(msgspec.Struct):
    """One item of a chunk's `tool_calls`."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


@dataclass(slots=True)
class _Call:
    number: int
    id: str | None
    name: str


class CallReader:
    """Reads the calls of one answer, in the order they come."""

    def __init__(self, *, parallel: bool) -> None:
        """Without `parallel` all but the first call are dropped."""
        self._parallel = parallel
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._begun = 0

    @property
    def called(self) -> bool:
        """Whether there has been a call."""
        return self._begun > 0

    def take(self, deltas: Sequence[CallDelta]) -> tuple[CallPiece, ...]:
        pieces = [piece for delta in deltas for piece in self._pieces(delta)]
        return tuple(piece for piece in pieces if self._parallel or piece.index == 0)

    def _pieces(self, delta: CallDelta) -> list[CallPiece]:
        function = delta.function or Function()
        index, pieces = delta.index or 0, []
        call = self._by_id.get(delta.id or "") or self._by_index.get(index)
        if function.name and (call is None or _another(call, delta, function.name)):
            call = self._by_index[index] = _Call(self._begun, delta.id or None, function.name)
            self._begun += 1
            if call.id is not None:
                self._by_id[call.id] = call
            pieces.append(CallPiece(index=call.number, id=call.id or new_call_id(), name=call.name))
        if call is not None and (arguments := _text(function.arguments)):
            pieces.append(CallPiece(index=call.number, arguments=arguments))
        return pieces


def _another(call: _Call, delta: CallDelta, name: str) -> bool:
    """Whether this begins a call beside the one that has its index. Without any sign of it, a name that is repeated
    is a repetition; where a server numbers nothing, each call comes whole."""
    if delta.id and call.id:
        return delta.id != call.id
    return name != call.name or (delta.index is None and delta.id is None)


def _text(arguments: Any) -> str:
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return msgspec.json.encode(arguments).decode()

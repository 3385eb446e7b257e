"""Answers that are told as a sequence of parts, runs of text and calls, of which one is open at a time."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from backends.backend import CallPiece, Delta
from backends.prompt import ToolCall
from gateway.api.dialect import Chunk, Rendering


@dataclass(slots=True, kw_only=True)
class Part:
    """`number`: its place among the parts; `written`: what there is of it."""

    number: int
    written: str = ""


@dataclass(slots=True, kw_only=True)
class TextPart(Part):
    pass


@dataclass(slots=True, kw_only=True)
class CallPart(Part):
    """`written` is the call's arguments, JSON text."""

    id: str
    name: str

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.id, self.name, self.written)


class PartsRendering(Rendering):
    """A dialect says how a part begins, goes on and ends. An answer that says nothing is an empty text."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._calls: dict[int, CallPart] = {}  # by their index
        self._begun = 0  # parts of which the client knows

    @property
    def text(self) -> str:
        return "".join(part.written for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part.call for part in self._calls.values())

    @abstractmethod
    def begun(self, part: Part) -> Sequence[Chunk]: ...

    @abstractmethod
    def added(self, part: Part, written: str) -> Chunk:
        """`written` is new in `part`."""

    @abstractmethod
    def ended(self, part: Part) -> Sequence[Chunk]: ...

    def piece(self, delta: Delta) -> Sequence[Chunk]:
        chunks: list[Chunk] = []
        for part, written in self._heard(delta):
            chunks += self._change_to(part)
            if written:
                chunks.append(self.added(part, written))
        return chunks

    def last_ended(self) -> Sequence[Chunk]:
        """The end of the last part of a stream, when no more is to come."""
        return [*self._change_to(self.last_part()), *self.ended(self.last_part())]

    def hear(self, deltas: Iterable[Delta]) -> None:
        """All of an answer that is not streamed."""
        for delta in deltas:
            for _ in self._heard(delta):
                pass

    def last_part(self) -> Part:
        return self.parts[-1] if self.parts else self._in_text()

    def _change_to(self, part: Part) -> Sequence[Chunk]:
        if part.number < self._begun:
            return ()
        self._begun += 1
        before = self.ended(self.parts[part.number - 1]) if part.number else ()
        return [*before, *self.begun(part)]

    def _heard(self, delta: Delta) -> Iterator[tuple[Part, str]]:
        """What a delta adds, and to which part. Text stands before calls, but behind one that has begun already."""
        fresh = next((n for n, piece in enumerate(delta.calls) if piece.id is not None), len(delta.calls))
        for piece in delta.calls[:fresh]:
            yield self._write(self._calls[piece.index], piece.arguments)
        if delta.text:
            yield self._write(self._in_text(), delta.text)
        for piece in delta.calls[fresh:]:
            yield self._write(self._in_call(piece), piece.arguments)

    def _write(self, part: Part, written: str) -> tuple[Part, str]:
        part.written += written
        return part, written

    def _in_text(self) -> TextPart:
        if self.parts and isinstance(part := self.parts[-1], TextPart):
            return part
        self.parts.append(part := TextPart(number=len(self.parts)))
        return part

    def _in_call(self, piece: CallPiece) -> CallPart:
        if piece.id is None or piece.name is None:
            return self._calls[piece.index]
        part = self._calls[piece.index] = CallPart(number=len(self.parts), id=piece.id, name=piece.name)
        self.parts.append(part)
        return part

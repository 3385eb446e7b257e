"""An answer in OpenAI's shapes. The dialects differ in what a choice is, and in three names."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from backends.backend import Usage
from gateway.request import Answer

Chunk = dict[str, Any]
Finish = Literal["stop", "length"]


class Rendering(ABC):
    """One answer's. `model` in it is the tier that answered, whatever name was asked for."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, answer: Answer, include_usage: bool) -> None:
        self._head = {"id": f"{self.id_prefix}{answer.id}", "created": answer.created, "model": answer.tier}
        # Asked for, it is in every chunk: null until the last one.
        self._usage: Chunk = {"usage": None} if include_usage else {}

    @abstractmethod
    def opening(self) -> Chunk | None:
        """What a stream begins with."""

    @abstractmethod
    def piece(self, text: str) -> Chunk:
        """More of the text."""

    @abstractmethod
    def closing(self, finish: Finish) -> Chunk:
        """Why the text ended."""

    @abstractmethod
    def choice(self, text: str, finish: Finish) -> dict[str, Any]:
        """The whole text, in an answer that is not streamed."""

    def chunk(self, choices: list[dict[str, Any]]) -> Chunk:
        return {**self._head, "object": self.chunk_object, "choices": choices, **self._usage}

    def usage(self, usage: Usage) -> Chunk:
        """What a stream ends with where usage was asked for."""
        return {**self.chunk([]), "usage": _usage(usage)}

    def whole(self, text: str, finish: Finish, usage: Usage) -> dict[str, Any]:
        choices = [self.choice(text, finish)]
        return {**self._head, "object": self.whole_object, "choices": choices, "usage": _usage(usage)}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }

"""An answer in the shapes of OpenAI's older endpoints. They differ in what a choice is, and in three names."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from backends.backend import Usage
from gateway.api.dialect import Chunk, Ending, Finish, Rendering
from gateway.errors import ApiError, openai_error
from gateway.request import Answer


class ChoiceRendering(Rendering):
    """One answer's."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, include_usage: bool) -> None:
        self._head: Chunk = {}
        self._include_usage = include_usage
        # Asked for, it is in every chunk: null until the last one.
        self._usage: Chunk = {"usage": None} if include_usage else {}

    @abstractmethod
    def begun(self) -> Sequence[Chunk]:
        """What a stream begins with."""

    @abstractmethod
    def ended(self, finish: Finish) -> Chunk:
        """Why the text ended."""

    @abstractmethod
    def choice(self, text: str, finish: Finish) -> dict[str, Any]:
        """The whole text, in an answer that is not streamed."""

    def opening(self, answer: Answer) -> Sequence[Chunk]:
        self._head = self._headed(answer)
        return self.begun()

    def closing(self, ending: Ending) -> Sequence[Chunk]:
        closing = [self.ended(ending.finish)]
        if self._include_usage:
            closing.append({**self.chunk([]), "usage": _usage(ending.usage)})
        return closing

    def broken(self, error: ApiError) -> Sequence[Chunk]:
        return [openai_error(error)]

    def whole(self, answer: Answer, text: str, ending: Ending) -> Chunk:
        choices = [self.choice(text, ending.finish)]
        usage = _usage(ending.usage)
        return {**self._headed(answer), "object": self.whole_object, "choices": choices, "usage": usage}

    def chunk(self, choices: list[dict[str, Any]]) -> Chunk:
        return {**self._head, "object": self.chunk_object, "choices": choices, **self._usage}

    def _headed(self, answer: Answer) -> Chunk:
        return {"id": f"{self.id_prefix}{answer.id}", "created": answer.created, "model": answer.tier}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }

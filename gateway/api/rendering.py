"""An answer in the shapes of OpenAI's older endpoints. They differ in what a choice is, and in three names."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec.json import encode

from backends.backend import Delta, Usage
from gateway.api.dialect import Chunk, Ending, Finish, Rendering, finish_of
from gateway.errors import ApiError, openai_error
from gateway.request import Answer

Choice = dict[str, Any]
GAP = "\0"  # a text that stands for any other, as nothing else in an event can


class ChoiceRendering(Rendering):
    """Up to eight answers to one prompt, as `choices` by their `index`."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, n: int, include_usage: bool, *, scored: bool) -> None:
        """`scored`: whether logprobs are asked for."""
        self.n = n
        self.scored = scored
        self._head: Chunk = {}
        self._include_usage = include_usage
        # Asked for, it is in every chunk: null until the last one.
        self._usage: Chunk = {"usage": None} if include_usage else {}
        self._around: dict[int, tuple[bytes, bytes]] = {}  # what stands around a text, by choice

    @abstractmethod
    def begun(self, index: int) -> Choice | None:
        """What a choice's stream begins with."""

    @abstractmethod
    def more(self, delta: Delta) -> Choice:
        """More of a choice's text."""

    @abstractmethod
    def ended(self, index: int, finish: Finish) -> Choice:
        """Why a choice's text ended."""

    @abstractmethod
    def choice(self, index: int, deltas: Sequence[Delta], finish: Finish) -> Choice:
        """A whole choice, in an answer that is not streamed."""

    def opening(self, answer: Answer) -> Sequence[Chunk]:
        self._head = self._headed(answer)
        begun = [self.begun(index) for index in range(self.n)]
        return [self.chunk(choice) for choice in begun if choice is not None]

    def piece(self, delta: Delta) -> Sequence[Chunk]:
        said = delta.text or delta.calls or delta.scores
        chunks = [self.chunk(self.more(delta))] if said else []
        if delta.usage is None and (finish := finish_of(delta)) is not None:
            chunks.append(self.chunk(self.ended(delta.index, finish)))
        return chunks

    def ready(self, delta: Delta) -> bytes | None:
        """Deltas of text alone, which nearly all are, differ in nothing but that text."""
        if not delta.text or delta.calls or delta.scores or delta.prompt or delta.finish is not None:
            return None
        if delta.index not in self._around:
            [chunk] = self.piece(Delta(index=delta.index, text=GAP))
            before, _, after = encode(chunk).partition(encode(GAP))
            self._around[delta.index] = before, after
        before, after = self._around[delta.index]
        return before + encode(delta.text) + after

    def closing(self, ending: Ending) -> Sequence[Chunk]:
        closing = [self.chunk(self.ended(ending.index, ending.finish))]
        if self._include_usage:
            closing.append({**self.chunk(), "usage": _usage(ending.usage)})
        return closing

    def broken(self, error: ApiError) -> Sequence[Chunk]:
        return [openai_error(error)]

    def whole(self, answer: Answer, deltas: Sequence[Delta], ending: Ending) -> Chunk:
        choices = []
        for index in range(self.n):
            own = [delta for delta in deltas if delta.index == index]
            finish = next((end for delta in own if (end := finish_of(delta)) is not None), ending.finish)
            choices.append(self.choice(index, own, finish))
        usage = _usage(ending.usage)
        return {**self._headed(answer), "object": self.whole_object, "choices": choices, "usage": usage}

    def chunk(self, *choices: Choice) -> Chunk:
        return {**self._head, "object": self.chunk_object, "choices": list(choices), **self._usage}

    def _headed(self, answer: Answer) -> Chunk:
        return {"id": f"{self.id_prefix}{answer.id}", "created": answer.created, "model": answer.tier}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }

"""The dialect of `/v1/completions`: a text to continue, no conversation."""

from typing import Annotated, Any

from msgspec import Meta

from backends.prompt import Prompt
from gateway.api.fields import GENERATION_OFF, GenerationBody, Off, convert
from gateway.api.rendering import Chunk, Finish, Rendering
from gateway.api.strictjson import decode_object

OFF: Off = {
    **GENERATION_OFF,
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (),
}

Text = Annotated[str, Meta(min_length=1)]


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    prompt: Text | Annotated[list[Text], Meta(min_length=1, max_length=1)]

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    def to_prompt(self) -> Prompt:
        return Prompt(text=self.prompt if isinstance(self.prompt, str) else self.prompt[0])


class CompletionRendering(Rendering):
    id_prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def opening(self) -> Chunk | None:
        return None

    def piece(self, text: str) -> Chunk:
        return self.chunk([_choice(text, None)])

    def closing(self, finish: Finish) -> Chunk:
        return self.chunk([_choice("", finish)])

    def choice(self, text: str, finish: Finish) -> dict[str, Any]:
        return _choice(text, finish)


def decode(data: bytes) -> CompletionBody:
    """Raises ApiError 400 naming the field."""
    return convert(decode_object(data), CompletionBody, OFF)


def _choice(text: str, finish: Finish | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}

"""The dialect of `/v1/completions`: a text to continue, no conversation."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from backends.prompt import Prompt
from gateway.api.dialect import Chunk, Dialect, Finish
from gateway.api.fields import GENERATION_OFF, GenerationBody, Off, convert_generation
from gateway.api.rendering import ChoiceRendering
from gateway.api.strictjson import decode_object
from gateway.config import Tenant

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

    def to_prompt(self) -> Prompt:
        return Prompt(text=self.prompt if isinstance(self.prompt, str) else self.prompt[0])


class CompletionRendering(ChoiceRendering):
    id_prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def begun(self) -> Sequence[Chunk]:
        return ()

    def piece(self, text: str) -> Sequence[Chunk]:
        return [self.chunk([_choice(text, None)])]

    def ended(self, finish: Finish) -> Chunk:
        return self.chunk([_choice("", finish)])

    def choice(self, text: str, finish: Finish) -> dict[str, Any]:
        return _choice(text, finish)


class Completions(Dialect[CompletionBody, CompletionRendering]):
    endpoint = "completions"

    def decode(self, data: bytes) -> CompletionBody:
        return decode(data)

    async def open(self, body: CompletionBody, tenant: Tenant) -> tuple[Prompt, CompletionRendering]:
        return body.to_prompt(), CompletionRendering(body.include_usage)


def decode(data: bytes) -> CompletionBody:
    """Raises ApiError 400 naming the field."""
    return convert_generation(decode_object(data), CompletionBody, OFF)


def _choice(text: str, finish: Finish | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}

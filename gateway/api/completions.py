"""The dialect of `/v1/completions`: a text to continue, no conversation."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from backends.backend import Delta, TokenScore
from backends.prompt import Prompt
from gateway.api.dialect import Chunk, Dialect, Ending, Finish
from gateway.api.fields import GENERATION_OFF, INT32, GenerationBody, Off, Top, convert_generation
from gateway.api.logprobs import CompletionLogprobs, Object, joined_scores
from gateway.api.rendering import Choice, ChoiceRendering
from gateway.api.strictjson import decode_object, invalid
from gateway.config import Tenant
from gateway.request import Answer, Request

OFF: Off = {
    **GENERATION_OFF,
    "best_of": (1,),
    "suffix": ("",),
}

Text = Annotated[str, Meta(min_length=1)]


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    prompt: Text | Annotated[list[Text], Meta(min_length=1, max_length=1)]
    max_tokens: Annotated[int, Meta(ge=0, le=INT32)] | None = None
    logprobs: Top | None = None
    echo: bool = False

    @property
    def text(self) -> str:
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]

    @property
    def told_logprobs(self) -> int | None:
        return self.logprobs

    def to_prompt(self) -> Prompt:
        return Prompt(text=self.text)

    def sampled(self, request: Request) -> Request:
        scored = self.echo and self.logprobs is not None
        return replace(super().sampled(request), prompt_logprobs=scored)


class CompletionRendering(ChoiceRendering):
    id_prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def __init__(self, body: CompletionBody) -> None:
        super().__init__(body.n, body.include_usage, scored=body.logprobs is not None)
        self._echo = body.text if body.echo else ""
        self._prompt: tuple[TokenScore, ...] = ()
        self._logprobs = [CompletionLogprobs(len(self._echo)) for _ in range(body.n)]

    def begun(self, index: int) -> Choice | None:
        """Where the echo comes with logprobs, it waits for them."""
        return _choice(index, self._echo) if self._echo and not self.scored else None

    def piece(self, delta: Delta) -> Sequence[Chunk]:
        if not delta.prompt:
            return super().piece(delta)
        logprobs = CompletionLogprobs().told(delta.prompt, self._echo)
        echoes = [self.chunk(_choice(index, self._echo, logprobs)) for index in range(self.n)]
        return [*echoes, *super().piece(delta)]

    def more(self, delta: Delta) -> Choice:
        logprobs = self._logprobs[delta.index].told(delta.scores) if delta.scores else None
        return _choice(delta.index, delta.text, logprobs)

    def ended(self, index: int, finish: Finish) -> Choice:
        return _choice(index, "", finish=finish)

    def whole(self, answer: Answer, deltas: Sequence[Delta], ending: Ending) -> Chunk:
        self._prompt = next((delta.prompt for delta in deltas if delta.prompt), ())
        return super().whole(answer, deltas, ending)

    def choice(self, index: int, deltas: Sequence[Delta], finish: Finish) -> Choice:
        text = self._echo + "".join(delta.text for delta in deltas)
        return _choice(index, text, self._all_logprobs(index, deltas) if self.scored else None, finish)

    def _all_logprobs(self, index: int, deltas: Sequence[Delta]) -> Object:
        echo = CompletionLogprobs().told(self._prompt, self._echo)
        answer = self._logprobs[index].told(joined_scores(deltas))
        return {name: echo[name] + answer[name] for name in echo}


class Completions(Dialect[CompletionBody, CompletionRendering]):
    endpoint = "completions"

    def decode(self, data: bytes) -> CompletionBody:
        return decode(data)

    async def open(self, body: CompletionBody, tenant: Tenant) -> tuple[Prompt, CompletionRendering]:
        return body.to_prompt(), CompletionRendering(body)


def decode(data: bytes) -> CompletionBody:
    """Raises ApiError 400 naming the field."""
    fields = decode_object(data)
    if isinstance(prompt := fields.get("prompt"), list) and (
        len(prompt) != 1 or not isinstance(prompt[0], str)
    ):
        raise invalid(
            "prompt", "one text is needed; several prompts, and prompts of token ids, are not supported"
        )
    body = convert_generation(fields, CompletionBody, OFF)
    if body.max_tokens == 0 and not body.echo:
        raise invalid("max_tokens", "0 is only allowed with echo")
    return body


def _choice(index: int, text: str, logprobs: Object | None = None, finish: Finish | None = None) -> Choice:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

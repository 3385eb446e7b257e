"""The dialect of `/v1/completions`: texts to continue or gaps to fill, no conversation."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, structs

from backends.backend import Delta, TokenScore
from backends.prompt import Prompt
from gateway.api.dialect import Chunk, Dialect, Ending, Finish
from gateway.api.fields import GENERATION_OFF, INT32, GenerationBody, Top, convert_generation
from gateway.api.logprobs import CompletionLogprobs, Object, joined_scores
from gateway.api.rendering import Choice, ChoiceRendering
from gateway.api.strictjson import decode_object, invalid
from gateway.config import Tenant
from gateway.request import Answer, Request

MAX_PROMPTS = 64
MAX_CHOICES = 128  # as many as OpenAI has to one prompt


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    prompt: str | list[Any]  # of texts, token ids or lists of token ids: see `_check_prompts`
    suffix: str = ""  # of a gap; empty: the prompt is continued
    best_of: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=INT32)] | None = None
    logprobs: Top | None = None
    echo: bool = False

    @property
    def prompts(self) -> Mapping[str, str | list[int]]:
        """Texts and lists of ids, by the client's name for each."""
        if isinstance(self.prompt, str):
            return {"prompt": self.prompt}
        if isinstance(self.prompt[0], int):
            return {"prompt": self.prompt}
        return {f"prompt[{i}]": each for i, each in enumerate(self.prompt)}

    @property
    def told_logprobs(self) -> int | None:
        return self.logprobs

    def to_prompt(self) -> Prompt:
        """The first of them."""
        return self._prompt(next(iter(self.prompts.values())))

    def _prompt(self, given: str | list[int]) -> Prompt:
        if isinstance(given, str):
            return Prompt(text=given, suffix=self.suffix or None)
        return Prompt(ids=tuple(given))

    def sampled(self, request: Request) -> Request:
        scored = self.echo and self.logprobs is not None
        return structs.replace(
            super().sampled(request), prompt_field=next(iter(self.prompts)), prompt_logprobs=scored
        )

    def split(self, request: Request) -> Sequence[Request]:
        """One request for each prompt, ids told apart by a number."""
        first, *more = self.prompts.items()
        others = (
            structs.replace(
                request, id=f"{request.id}-{number}", prompt_field=field, prompt=self._prompt(given)
            )
            for number, (field, given) in enumerate(more, 1)
        )
        return (request, *others)


class CompletionRendering(ChoiceRendering):
    """`n` choices to each of the prompts, one prompt's after the other's."""

    id_prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def __init__(self, body: CompletionBody) -> None:
        self._prompts = tuple(body.prompts.values())
        super().__init__(len(self._prompts) * body.n, body.include_usage, scored=body.logprobs is not None)
        self._each = body.n
        self._echoing = body.echo
        self._echoes: Sequence[str] = [""] * len(self._prompts)
        self._scores: Mapping[int, tuple[TokenScore, ...]] = {}  # of prompts, by the first of their choices
        self._logprobs: dict[int, CompletionLogprobs] = {}  # by choice

    def opening(self, answer: Answer) -> Sequence[Chunk]:
        self._see(answer)
        return super().opening(answer)

    def _see(self, answer: Answer) -> None:
        if self._echoing:
            told = zip(self._prompts, answer.spelled, strict=True)
            self._echoes = [given if isinstance(given, str) else spelled for given, spelled in told]

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._each]

    def begun(self, index: int) -> Choice | None:
        """Where the echo comes with logprobs, it waits for them."""
        echo = self._echo(index)
        return _choice(index, echo) if echo and not self.scored else None

    def piece(self, delta: Delta) -> Sequence[Chunk]:
        if not delta.prompt:
            return super().piece(delta)
        echo = self._echo(delta.index)
        logprobs = CompletionLogprobs().told(delta.prompt, echo)
        choices = range(delta.index, delta.index + self._each)
        echoes = [self.chunk(_choice(index, echo, logprobs)) for index in choices]
        return [*echoes, *super().piece(delta)]

    def more(self, delta: Delta) -> Choice:
        logprobs = self._logprobs_of(delta.index).told(delta.scores) if delta.scores else None
        return _choice(delta.index, delta.text, logprobs)

    def _logprobs_of(self, index: int) -> CompletionLogprobs:
        return self._logprobs.setdefault(index, CompletionLogprobs(len(self._echo(index))))

    def ended(self, index: int, finish: Finish) -> Choice:
        return _choice(index, "", finish=finish)

    def whole(self, answer: Answer, deltas: Sequence[Delta], ending: Ending) -> Chunk:
        self._see(answer)
        self._scores = {delta.index: delta.prompt for delta in deltas if delta.prompt}
        return super().whole(answer, deltas, ending)

    def choice(self, index: int, deltas: Sequence[Delta], finish: Finish) -> Choice:
        text = self._echo(index) + "".join(delta.text for delta in deltas)
        return _choice(index, text, self._all_logprobs(index, deltas) if self.scored else None, finish)

    def _all_logprobs(self, index: int, deltas: Sequence[Delta]) -> Object:
        """Those of the prompt came with the first of its choices."""
        prompt = self._scores.get(index - index % self._each, ())
        echo = CompletionLogprobs().told(prompt, self._echo(index))
        answer = self._logprobs_of(index).told(joined_scores(deltas))
        return {name: echo[name] + answer[name] for name in echo}


class Completions(Dialect[CompletionBody, CompletionRendering]):
    endpoint = "completions"

    def decode(self, data: bytes) -> CompletionBody:
        return decode(data)

    async def open(self, body: CompletionBody, tenant: Tenant) -> tuple[Prompt, CompletionRendering]:
        return body.to_prompt(), CompletionRendering(body)

    def requests(
        self, body: CompletionBody, request: Request, rendering: CompletionRendering
    ) -> Sequence[Request]:
        return body.split(request)


def decode(data: bytes) -> CompletionBody:
    """Raises ApiError 400 naming the field."""
    body = convert_generation(decode_object(data), CompletionBody, GENERATION_OFF)
    _check_prompts(body)
    if body.best_of not in (None, body.n):
        raise invalid("best_of", "only allowed equal to n", "unsupported_parameter")
    if body.max_tokens == 0 and not body.echo:
        raise invalid("max_tokens", "0 is only allowed with echo")
    if body.suffix and body.echo:
        raise invalid("echo", "not allowed beside suffix")
    return body


def _check_prompts(body: CompletionBody) -> None:
    """By hand, for the names of items: a list's schema would not tell which one is wrong."""
    if not body.prompt and not body.suffix:
        raise invalid("prompt", "it is empty")
    if isinstance(body.prompt, list) and len({type(each) for each in body.prompt}) != 1:
        raise invalid("prompt", "must be all texts, all token ids or all lists of token ids")
    if len(body.prompts) > MAX_PROMPTS:
        raise invalid("prompt", f"{len(body.prompts)} prompts are more than {MAX_PROMPTS}")
    if len(body.prompts) * body.n > MAX_CHOICES:
        raise invalid(
            "n", f"{body.n} answers to each of {len(body.prompts)} prompts are more than {MAX_CHOICES}"
        )
    for field, given in body.prompts.items():
        if isinstance(given, list):
            _check_ids(given, field)
            if body.suffix:
                raise invalid("suffix", "only allowed where the prompt is a text")
        elif not isinstance(given, str):
            raise invalid(field, "must be a text, a token id or a list of token ids")
        elif not given and not body.suffix:
            raise invalid(field, "it is empty")


def _check_ids(ids: Sequence[Any], field: str) -> None:
    if not ids:
        raise invalid(field, "it is empty")
    for number, id in enumerate(ids):
        if type(id) is not int or not 0 <= id <= INT32:
            raise invalid(f"{field}[{number}]", "is not the id of a token")


def _choice(index: int, text: str, logprobs: Object | None = None, finish: Finish | None = None) -> Choice:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

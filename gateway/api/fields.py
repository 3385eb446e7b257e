"""What request bodies share: sampling fields, harmless hints, and what is off.

null means absent, everywhere. A field that asks for something we do not do is refused by name; the same field with
the value that means "off" is taken, since many clients spell their defaults out.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, structs

from backends.wire import MAX_ANSWERS, MAX_BIASED, MAX_TOP, Grammar
from gateway.api.strictjson import Path, convert_error, invalid
from gateway.api.structured import STRUCTURED_OFF, ResponseFormat, StructuredOutputs, Text, grammar_of
from gateway.request import Request

INT32 = 2**31 - 1
TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
Tokens = Annotated[int, Meta(ge=1, le=INT32)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Top = Annotated[int, Meta(ge=0, le=MAX_TOP)]
TopP = Annotated[float, Meta(gt=0, le=1)]
Stop = Annotated[str, Meta(min_length=1, max_length=1024)]
Off = Mapping[str, tuple[Any, ...]]
"""By field: the values, besides null, that ask for nothing."""

ZERO = (0, 0.0)
GENERATION_OFF: Off = {"store": (False,)}

Body = TypeVar("Body", bound=msgspec.Struct)
Generation = TypeVar("Generation", bound="GenerationBody")


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False


class OpenAIBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of every OpenAI dialect."""

    model: ModelName
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: TopP = 1.0
    stream: bool = False
    # Hints of the client's own book-keeping; they change nothing here. `flex` waits behind everybody else.
    service_tier: Literal["auto", "default", "flex"] = "auto"
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class GenerationBody(OpenAIBody, frozen=True, kw_only=True):
    """Fields of `/v1/chat/completions` and `/v1/completions` alike. `top_k`, `min_p`, `repetition_penalty`,
    `min_tokens`, `stop_token_ids`, `ignore_eos` and `structured_outputs` are extensions that vLLM has too, and so is
    `response_format` for completions."""

    n: Annotated[int, Meta(ge=1, le=MAX_ANSWERS)] = 1
    max_tokens: Tokens | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT32)] = 0  # 0 and -1: off
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] = 1.0
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=MAX_BIASED)] = {}
    min_tokens: Annotated[int, Meta(ge=0, le=INT32)] = 0
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[Annotated[int, Meta(ge=0, le=INT32)]], Meta(max_length=64)] = []
    ignore_eos: bool = False
    stream_options: StreamOptions | None = None
    metadata: dict[str, str] | None = None  # a hint too
    response_format: ResponseFormat = Text()
    structured_outputs: StructuredOutputs | None = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def unsigned_seed(self) -> int | None:
        """The 64 bits of a signed seed, as the engines want them."""
        return None if self.seed is None else self.seed % 2**64

    @property
    def told_logprobs(self) -> int | None:
        """How many alternatives each token's logprob comes with; None for no logprobs."""
        return None

    @property
    def grammar_field(self) -> str:
        return "response_format" if self.structured_outputs is None else "structured_outputs"

    @property
    def grammar(self) -> Grammar | None:
        """Raises ApiError 400."""
        if self.structured_outputs is None:
            return grammar_of(self.response_format, "response_format")
        if not isinstance(self.response_format, Text):
            raise invalid(
                "structured_outputs", "not allowed beside response_format", "mutually_exclusive_parameters"
            )
        return self.structured_outputs.to_grammar("structured_outputs")

    def sampled(self, request: Request) -> Request:
        """Raises ApiError 400 for a grammar that cannot be."""
        return structs.replace(
            request,
            max_tokens=self.most_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            seed=self.unsigned_seed,
            stop=self.stops,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias={int(id): bias for id, bias in self.logit_bias.items()},
            min_tokens=self.min_tokens,
            n=self.n,
            logprobs=self.told_logprobs,
            grammar=self.grammar,
            grammar_field=self.grammar_field,
        )


def without_off(fields: Mapping[str, Any], off: Off, path: Path = "") -> dict[str, Any]:
    """`fields` less what is null or off. Raises ApiError 400 for one of `off` that is neither."""
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        if name not in off:
            kept[name] = value
        elif not any(type(value) is type(nothing) and value == nothing for nothing in off[name]):
            raise invalid(f"{path}{name}", "this is not supported", "unsupported_parameter")
    return kept


def convert(fields: dict[str, Any], body: type[Body], off: Off) -> Body:
    """Raises ApiError 400 naming the first field that is wrong."""
    try:
        return msgspec.convert(without_off(fields, off), body)
    except msgspec.ValidationError as error:
        raise convert_error(error) from None


def convert_generation(fields: dict[str, Any], body: type[Generation], off: Off) -> Generation:
    """As `convert`."""
    if isinstance(options := fields.get("stream_options"), dict):
        told = without_off(options, {"include_obfuscation": (False,)}, "stream_options.")
        fields = {**fields, "stream_options": told}
    if isinstance(structured := fields.get("structured_outputs"), dict):
        kept = without_off(structured, STRUCTURED_OFF, "structured_outputs.")
        fields = {**fields, "structured_outputs": kept}
    converted = convert(fields, body, off)
    if converted.stream_options is not None and not converted.stream:
        raise invalid("stream_options", "only allowed where stream is true")
    for id in converted.logit_bias:
        if not TOKEN_ID.fullmatch(id):
            raise invalid("logit_bias", f"{id[:64]!r} is not the id of a token")
    if converted.most_tokens is not None and converted.min_tokens > converted.most_tokens:
        raise invalid(
            "min_tokens", f"{converted.min_tokens} are more than max_tokens, {converted.most_tokens}"
        )
    return converted

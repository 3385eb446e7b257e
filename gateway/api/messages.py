"""The dialect of `/v1/messages`, which is Anthropic's. `system` stands beside the messages, and a length is needed."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, structs

from backends.prompt import ChatMessage, Prompt, Tool
from gateway.api import tools
from gateway.api.dialect import Dialect
from gateway.api.fields import INT32, ModelName, Off, Stop, Tokens, TopP, convert, without_off
from gateway.api.messages_blocks import Message, TextBlock, known_only, result_fields, text_of, texts_only
from gateway.api.messages_blocks import check as check_blocks
from gateway.api.messages_rendering import MessageRendering
from gateway.api.messages_tools import FIELDS, AnyChoice, Auto, CacheControl, Tools, custom_only
from gateway.api.strictjson import decode_object, invalid
from gateway.api.structured import BareSchema, grammar_of
from gateway.config import Tenant
from gateway.errors import NO_THREADS
from gateway.request import Request

COUNT_OFF: Off = {
    "thread": (),
    "thinking": ({"type": "disabled"},),
    "mcp_servers": ([],),
    "context_management": (),
    "speed": ("standard",),
}
OFF: Off = {**COUNT_OFF, "container": (), "inference_geo": (), "diagnostics": ()}
OUTPUT_OFF: Off = {"effort": ("high",)}


class Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user_id: Annotated[str, Meta(max_length=512)] | None = None


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: BareSchema | None = None


class CountBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is counted: the prompt, and nothing that is only about its answer."""

    model: ModelName
    messages: Annotated[list[Message], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    cache_control: CacheControl | None = None
    output_config: OutputConfig = OutputConfig()
    tools: Tools = []
    tool_choice: AnyChoice = Auto()

    @property
    def plain_tools(self) -> list[Tool]:
        return [tool.plain() for tool in self.tools]

    def to_prompt(self) -> Prompt:
        system = [] if not self.system else [ChatMessage(role="system", content=text_of(self.system))]
        said = [plain for message in self.messages for plain in message.plain()]
        return tools.offering((*system, *said), self.plain_tools, self.tool_choice.plain())


Count = TypeVar("Count", bound=CountBody)


class MessagesBody(CountBody, frozen=True, kw_only=True):
    max_tokens: Tokens
    temperature: Annotated[float, Meta(ge=0, le=1)] = 1.0
    top_p: TopP = 1.0
    top_k: Annotated[int, Meta(ge=0, le=INT32)] = 0  # off
    stop_sequences: Annotated[list[Stop], Meta(max_length=16)] = []
    stream: bool = False
    # Hints.
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] = "auto"

    def sampled(self, request: Request) -> Request:
        format = self.output_config.format
        return structs.replace(
            request,
            result_fields=result_fields(self.messages),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=tuple(self.stop_sequences),
            grammar=None if format is None else grammar_of(format, "output_config.format"),
            grammar_field="output_config.format",
        )


class Messages(Dialect[MessagesBody, MessageRendering]):
    endpoint = "messages"
    typed = True

    def decode(self, data: bytes) -> MessagesBody:
        return decode(data)

    async def open(self, body: MessagesBody, tenant: Tenant) -> tuple[Prompt, MessageRendering]:
        return body.to_prompt(), MessageRendering()


def decode(data: bytes) -> MessagesBody:
    """Raises ApiError 400 naming the field."""
    body = _checked(convert(_known_only(decode_object(data)), MessagesBody, OFF))
    if body.messages[-1].role == "assistant":
        last = f"messages[{len(body.messages) - 1}].role"
        raise invalid(last, "the last message must be the user's; a beginning of the answer is not supported")
    return body


def decode_count(data: bytes) -> CountBody:
    """Raises ApiError 400 naming the field."""
    return _checked(convert(_known_only(decode_object(data)), CountBody, COUNT_OFF))


def _known_only(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` freed of what is off. Raises ApiError 400 for blocks and tools of kinds that are not known."""
    fields = dict(fields)
    if fields.get("thread") is not None:
        raise invalid("thread", "conversations are not held here", NO_THREADS)
    if isinstance(config := fields.get("output_config"), dict):
        fields["output_config"] = without_off(config, OUTPUT_OFF, "output_config.")
    fields["messages"] = known_only(fields.get("messages"))
    fields["tools"] = custom_only(fields.get("tools"))
    if "system" in fields:
        fields["system"] = texts_only(fields["system"], "system")
    return fields


def _checked(body: Count) -> Count:
    check_blocks(body.messages)
    tools.check(body.plain_tools, body.tool_choice.plain(), FIELDS)
    return body

"""The dialect of `/v1/messages`, which is Anthropic's. `system` stands beside the messages, and a length is needed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backends.prompt import ChatMessage, Prompt
from gateway.api.dialect import Dialect
from gateway.api.fields import INT32, ModelName, Off, Stop, Tokens, TopP, convert, without_off
from gateway.api.messages_rendering import MessageRendering
from gateway.api.strictjson import decode_object, invalid
from gateway.api.structured import BareSchema, grammar_of
from gateway.config import Tenant
from gateway.request import Request

COUNT_OFF: Off = {
    "tools": ([],),
    "tool_choice": ({"type": "auto"}, {"type": "none"}),
    "thinking": ({"type": "disabled"},),
    "mcp_servers": ([],),
    "context_management": (),
    "speed": ("standard",),
}
OFF: Off = {**COUNT_OFF, "container": (), "inference_geo": (), "diagnostics": ()}
OUTPUT_OFF: Off = {"effort": ("high",)}
BLOCK_OFF: Off = {"citations": ([],)}


class CacheControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A hint, which changes nothing: prefixes are cached as they are, for the tenant alone."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


Blocks = Annotated[list[TextBlock], Meta(min_length=1)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | Blocks


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

    def to_prompt(self) -> Prompt:
        system = [] if not self.system else [ChatMessage(role="system", content=_plain(self.system))]
        said = [ChatMessage(role=message.role, content=_plain(message.content)) for message in self.messages]
        return Prompt(messages=(*system, *said))


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
        return replace(
            request,
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
    body = convert(_texts_only(decode_object(data)), MessagesBody, OFF)
    if body.messages[-1].role == "assistant":
        last = f"messages[{len(body.messages) - 1}].role"
        raise invalid(last, "the last message must be the user's; a beginning of the answer is not supported")
    return body


def decode_count(data: bytes) -> CountBody:
    """Raises ApiError 400 naming the field."""
    return convert(_texts_only(decode_object(data)), CountBody, COUNT_OFF)


def _texts_only(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` with the blocks freed of what is off. Raises ApiError 400 for a block that is no text."""
    fields = dict(fields)
    if isinstance(config := fields.get("output_config"), dict):
        fields["output_config"] = without_off(config, OUTPUT_OFF, "output_config.")
    if isinstance(messages := fields.get("messages"), list):
        fields["messages"] = [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    if "system" in fields:
        fields["system"] = _blocks(fields["system"], "system")
    return fields


def _message(message: Any, path: str) -> Any:
    if not isinstance(message, dict) or "content" not in message:
        return message
    return {**message, "content": _blocks(message["content"], f"{path}.content")}


def _blocks(content: Any, path: str) -> Any:
    if not isinstance(content, list):
        return content
    return [
        _text(block, f"{path}[{i}]") if isinstance(block, dict) else block for i, block in enumerate(content)
    ]


def _text(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    if isinstance(kind := block.get("type"), str) and kind != "text":
        raise invalid(f"{path}.type", "only text is supported", "unsupported_parameter")
    return without_off(block, BLOCK_OFF, f"{path}.")


def _plain(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)

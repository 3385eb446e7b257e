"""The dialect of `/v1/chat/completions`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backends.prompt import ChatMessage, Prompt
from gateway.api.dialect import Chunk, Dialect, Finish
from gateway.api.fields import GENERATION_OFF, GenerationBody, Off, Tokens, convert_generation, without_off
from gateway.api.rendering import ChoiceRendering
from gateway.api.strictjson import decode_object, invalid
from gateway.config import Tenant

CHAT_OFF: Off = {
    **GENERATION_OFF,
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
# What clients send back of an answer of ours, and of others', when they continue a conversation.
MESSAGE_OFF: Off = {
    "refusal": (),
    "annotations": ([],),
    "audio": (),
    "tool_calls": ([],),
    "function_call": (),
    "reasoning_content": ("",),
}


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Meta(min_length=1)]
    name: Annotated[str, Meta(min_length=1, max_length=64)] | None = None

    def plain(self) -> ChatMessage:
        """`developer` is the newer word for `system`; chat templates know only the old one."""
        role = "system" if self.role == "developer" else self.role
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return ChatMessage(role=role, content=text, name=self.name)


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Tokens | None = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def to_prompt(self) -> Prompt:
        return Prompt(messages=tuple(message.plain() for message in self.messages))


class ChatRendering(ChoiceRendering):
    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def begun(self) -> Sequence[Chunk]:
        return [self._chunk({"role": "assistant", "content": ""}, None)]

    def piece(self, text: str) -> Sequence[Chunk]:
        return [self._chunk({"content": text}, None)]

    def ended(self, finish: Finish) -> Chunk:
        return self._chunk({}, finish)

    def _chunk(self, delta: dict[str, Any], finish: Finish | None) -> Chunk:
        return self.chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])

    def choice(self, text: str, finish: Finish) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}


class Chat(Dialect[ChatBody, ChatRendering]):
    endpoint = "chat"

    def decode(self, data: bytes) -> ChatBody:
        return decode(data)

    async def open(self, body: ChatBody, tenant: Tenant) -> tuple[Prompt, ChatRendering]:
        return body.to_prompt(), ChatRendering(body.include_usage)


def decode(data: bytes) -> ChatBody:
    """Raises ApiError 400 naming the field."""
    fields = decode_object(data)
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [
            without_off(message, MESSAGE_OFF, f"messages[{i}].") if isinstance(message, dict) else message
            for i, message in enumerate(messages)
        ]
    body = convert_generation(fields, ChatBody, CHAT_OFF)
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.most_tokens:
        raise invalid("max_tokens", "differs from max_completion_tokens")
    return body

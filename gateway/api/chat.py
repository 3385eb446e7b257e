"""The dialect of `/v1/chat/completions`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backends.backend import Delta
from backends.prompt import ChatMessage, Prompt
from gateway.api.dialect import Dialect, Finish
from gateway.api.fields import (
    GENERATION_OFF,
    GenerationBody,
    Off,
    Tokens,
    Top,
    convert_generation,
    without_off,
)
from gateway.api.logprobs import chat_logprobs, joined_scores
from gateway.api.rendering import Choice, ChoiceRendering
from gateway.api.strictjson import decode_object, invalid
from gateway.config import Tenant

CHAT_OFF: Off = {
    **GENERATION_OFF,
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
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
    logprobs: bool = False
    top_logprobs: Top = 0

    @property
    def told_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def to_prompt(self) -> Prompt:
        return Prompt(messages=tuple(message.plain() for message in self.messages))


class ChatRendering(ChoiceRendering):
    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def begun(self, index: int) -> Choice:
        return _part(index, {"role": "assistant", "content": ""})

    def more(self, delta: Delta) -> Choice:
        logprobs = chat_logprobs(delta.scores) if delta.scores else None
        return _part(delta.index, {"content": delta.text}) | {"logprobs": logprobs}

    def ended(self, index: int, finish: Finish) -> Choice:
        return _part(index, {}) | {"finish_reason": finish}

    def choice(self, index: int, deltas: Sequence[Delta], finish: Finish) -> Choice:
        text = "".join(delta.text for delta in deltas)
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": chat_logprobs(joined_scores(deltas)) if self.scored else None,
            "finish_reason": finish,
        }


class Chat(Dialect[ChatBody, ChatRendering]):
    endpoint = "chat"

    def decode(self, data: bytes) -> ChatBody:
        return decode(data)

    async def open(self, body: ChatBody, tenant: Tenant) -> tuple[Prompt, ChatRendering]:
        scored = body.told_logprobs is not None
        return body.to_prompt(), ChatRendering(body.n, body.include_usage, scored=scored)


def _part(index: int, delta: dict[str, Any]) -> Choice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


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
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs", "only allowed where logprobs is true")
    return body

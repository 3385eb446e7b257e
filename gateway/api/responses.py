"""Bodies of `/v1/responses`: messages as items, on top of what was said before."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backends.prompt import ChatMessage, Prompt
from gateway.api.fields import ZERO, Off, OpenAIBody, Tokens, convert, without_off
from gateway.api.strictjson import decode_object, invalid
from gateway.api.structured import Text, TextFormat, grammar_of
from gateway.archive import new_id
from gateway.request import Request
from gateway.turns import to_messages
from sessions import Turn

OFF: Off = {
    "background": (False,),
    "context_management": (),
    "include": ([],),
    "max_tool_calls": (),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prompt": (),
    "prompt_cache_options": ({},),
    "prompt_cache_retention": ("in_memory",),
    "reasoning": ({}, {"effort": "none"}),
    "stream_options": ({}, {"include_obfuscation": False}),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": ZERO,
    "truncation": ("disabled",),
}
TEXT_OFF: Off = {"verbosity": ("medium",)}
# What clients send back of an answer of ours when they continue a conversation themselves.
ITEM_OFF: Off = {"phase": ("final_answer",)}
PART_OFF: Off = {"annotations": ([],), "logprobs": ([],), "prompt_cache_breakpoint": ()}

Id = Annotated[str, Meta(min_length=1, max_length=128)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["input_text", "output_text"]
    text: str


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[Part], Meta(min_length=1)]
    type: Literal["message"] = "message"
    id: Id | None = None
    status: Literal["in_progress", "completed", "incomplete"] = "completed"

    @property
    def text(self) -> str:
        content = self.content
        return content if isinstance(content, str) else "".join(part.text for part in content)

    def turn(self) -> Turn:
        """`developer` is the newer word for `system`; chat templates know only the old one."""
        return Turn(role="system" if self.role == "developer" else self.role, content=self.text)

    def told(self) -> dict[str, Any]:
        """As lists of items show it."""
        own: Literal["input_text", "output_text"] = (
            "output_text" if self.role == "assistant" else "input_text"
        )
        parts = [Part(own, self.content)] if isinstance(self.content, str) else self.content
        return {
            "id": self.id or new_id("msg"),
            "type": "message",
            "status": self.status,
            "role": self.role,
            "content": [told_part(part.type, part.text) for part in parts],
        }


class ConversationReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Id


class TextOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: TextFormat = Text()


class ResponsesBody(OpenAIBody, frozen=True, kw_only=True):
    input: str | Annotated[list[Item], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Tokens | None = None
    metadata: Metadata = {}
    store: bool = True
    text: TextOptions = TextOptions()
    previous_response_id: Id | None = None
    conversation: Id | ConversationReference | None = None

    @property
    def conversation_id(self) -> str | None:
        given = self.conversation
        return given.id if isinstance(given, ConversationReference) else given

    @property
    def items(self) -> list[Item]:
        return [Item(role="user", content=self.input)] if isinstance(self.input, str) else self.input

    def to_prompt(self) -> Prompt:
        return self.prompt_after(())

    def prompt_after(self, history: tuple[Turn, ...]) -> Prompt:
        """The instructions stand before everything, and are no part of what was said."""
        turns = (*history, *(item.turn() for item in self.items))
        instructions = [] if self.instructions is None else [ChatMessage("system", self.instructions)]
        return Prompt(messages=(*instructions, *to_messages(turns)))

    def sampled(self, request: Request) -> Request:
        return replace(
            request,
            prompt_field="input",
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            grammar=grammar_of(self.text.format, "text.format"),
            grammar_field="text.format",
        )


def decode(data: bytes) -> ResponsesBody:
    """Raises ApiError 400 naming the field."""
    fields = dict(decode_object(data))
    fields["input"] = messages_only(fields.get("input"), "input")
    if isinstance(text := fields.get("text"), dict):
        fields["text"] = without_off(text, TEXT_OFF, "text.")
    body = convert(fields, ResponsesBody, OFF)
    if body.previous_response_id is not None and body.conversation is not None:
        raise invalid(
            "previous_response_id", "not allowed beside conversation", "mutually_exclusive_parameters"
        )
    check_ids(body.items, "input")
    return body


def messages_only(items: Any, path: str) -> Any:
    """`items` freed of what is off. Raises ApiError 400 for one that is no message, or holds more than text."""
    if not isinstance(items, list):
        return items
    return [_item(item, f"{path}[{i}]") if isinstance(item, dict) else item for i, item in enumerate(items)]


def check_ids(items: list[Item], path: str) -> None:
    """Raises ApiError 400 for an id that names two items."""
    seen: set[str] = set()
    for number, item in enumerate(items):
        if item.id in seen:
            raise invalid(f"{path}[{number}].id", "another item has this id")
        if item.id is not None:
            seen.add(item.id)


def told_part(kind: str, text: str) -> dict[str, Any]:
    """A part of a message as it is told; texts of answers have room for what is not done here."""
    if kind == "input_text":
        return {"type": kind, "text": text}
    return {"type": kind, "text": text, "annotations": [], "logprobs": []}


def _item(item: Mapping[str, Any], path: str) -> dict[str, Any]:
    if isinstance(kind := item.get("type"), str) and kind != "message":
        raise invalid(f"{path}.type", "only messages are supported", "unsupported_parameter")
    kept = without_off(item, ITEM_OFF, f"{path}.")
    if isinstance(content := kept.get("content"), list):
        kept["content"] = [
            _part(part, f"{path}.content[{i}]") if isinstance(part, dict) else part
            for i, part in enumerate(content)
        ]
    return kept


def _part(part: Mapping[str, Any], path: str) -> dict[str, Any]:
    if isinstance(kind := part.get("type"), str) and kind not in ("input_text", "output_text"):
        raise invalid(f"{path}.type", "only text is supported", "unsupported_parameter")
    return without_off(part, PART_OFF, f"{path}.")

"""The messages of a chat, by role."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backends.prompt import ChatMessage, ToolCall
from gateway.api.fields import Off, without_off
from gateway.api.strictjson import Path, invalid
from gateway.api.tools import MAX_CALLS, Arguments, CallId

# What clients send back of an answer of ours, and of others', when they continue a conversation.
MESSAGE_OFF: Off = {
    "refusal": (),
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "reasoning_content": ("",),
}

Name = Annotated[str, Meta(min_length=1, max_length=64)]


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Meta(min_length=1)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="role", kw_only=True):
    """Base of all roles."""

    def plain(self) -> ChatMessage:
        """As a chat template sees it."""
        raise NotImplementedError


class Saying(Message, frozen=True, kw_only=True):
    """Base of those that only say something."""

    content: Content
    name: Name | None = None

    def plain(self) -> ChatMessage:
        return ChatMessage(
            role=str(type(self).__struct_config__.tag), content=_text(self.content), name=self.name
        )


class SystemMessage(Saying, frozen=True, kw_only=True, tag="system"):
    pass


class DeveloperMessage(Saying, frozen=True, kw_only=True, tag="developer"):
    """The newer word for `system`; chat templates know only the old one."""

    def plain(self) -> ChatMessage:
        return ChatMessage(role="system", content=_text(self.content), name=self.name)


class UserMessage(Saying, frozen=True, kw_only=True, tag="user"):
    pass


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    arguments: Arguments


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: CallId
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Message, frozen=True, kw_only=True, tag="assistant"):
    content: Content | None = None
    name: Name | None = None
    tool_calls: Annotated[list[Call], Meta(max_length=MAX_CALLS)] = []

    def plain(self) -> ChatMessage:
        return ChatMessage(
            role="assistant",
            content="" if self.content is None else _text(self.content),
            name=self.name,
            tool_calls=tuple(
                ToolCall(call.id, call.function.name, call.function.arguments) for call in self.tool_calls
            ),
        )


class ToolMessage(Message, frozen=True, kw_only=True, tag="tool"):
    content: Content
    tool_call_id: CallId
    name: Name | None = None

    def plain(self) -> ChatMessage:
        return ChatMessage(
            role="tool", content=_text(self.content), name=self.name, tool_call_id=self.tool_call_id
        )


AnyMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


def _text(content: Content) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def without_what_is_off(messages: Any) -> Any:
    """Raises ApiError 400 for a field that asks for something we do not do."""
    if not isinstance(messages, list):
        return messages
    return [
        without_off(message, MESSAGE_OFF, f"messages[{i}].") if isinstance(message, dict) else message
        for i, message in enumerate(messages)
    ]


def result_fields(messages: Sequence[AnyMessage]) -> tuple[Path, ...]:
    """Where each result says which call it is of."""
    return tuple(
        f"messages[{i}].tool_call_id"
        for i, message in enumerate(messages)
        if isinstance(message, ToolMessage)
    )


def check(messages: list[AnyMessage]) -> None:
    """Raises ApiError 400 for an answer that says nothing, and for calls that share an id."""
    for i, message in enumerate(messages):
        if not isinstance(message, AssistantMessage):
            continue
        if message.content is None and not message.tool_calls:
            raise invalid(f"messages[{i}].content", "this parameter is missing", "missing_required_parameter")
        ids = [call.id for call in message.tool_calls]
        for j, id in enumerate(ids):
            if id in ids[:j]:
                raise invalid(f"messages[{i}].tool_calls[{j}].id", f"{id[:64]!r} is there twice")

"""What messages are made of: blocks of text, calls of tools, and their results."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backends.prompt import MAX_DEPTH, ChatMessage, ToolCall, deeper_than
from gateway.api.fields import Off, without_off
from gateway.api.messages_tools import CacheControl
from gateway.api.strictjson import Path, invalid
from gateway.api.tools import MAX_ARGUMENTS, MAX_CALLS, CallId, ToolName

BLOCK_OFF: dict[str, Off] = {
    "text": {"citations": ([],)},
    "tool_use": {"caller": ({"type": "direct"},), "toolset_name": ()},
    "tool_result": {"toolset_name": ()},
}
ALLOWED = {
    "user": frozenset({"text", "tool_result"}),
    "assistant": frozenset({"text", "tool_use"}),
    "system": frozenset({"text"}),
}
FAILED = "Error: "  # models have no other sign for a result that is one


class TextBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str
    cache_control: CacheControl | None = None


class ToolUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_use"):
    id: CallId
    name: ToolName
    input: dict[str, Any]
    cache_control: CacheControl | None = None

    def call(self) -> ToolCall:
        """With the white space that models are taught, so that what one wrote is found in its cache."""
        return ToolCall(self.id, self.name, json.dumps(self.input, ensure_ascii=False))


class ToolResult(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_result"
):
    tool_use_id: CallId
    content: str | list[TextBlock] = ""
    is_error: bool = False
    cache_control: CacheControl | None = None

    def message(self) -> ChatMessage:
        said = text_of(self.content)
        return ChatMessage("tool", FAILED + said if self.is_error else said, tool_call_id=self.tool_use_id)


Block = TextBlock | ToolUse | ToolResult


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(min_length=1)]

    @property
    def blocks(self) -> Sequence[Block]:
        return [TextBlock(self.content)] if isinstance(self.content, str) else self.content

    def plain(self) -> Iterator[ChatMessage]:
        """As a chat template sees it, where each result is a message of its own and stands before the user's words."""
        for block in self.blocks:
            if isinstance(block, ToolResult):
                yield block.message()
        words = [block.text for block in self.blocks if isinstance(block, TextBlock)]
        calls = tuple(block.call() for block in self.blocks if isinstance(block, ToolUse))
        if words or calls:
            yield ChatMessage(self.role, "".join(words), tool_calls=calls)


def text_of(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def result_fields(messages: Sequence[Message]) -> tuple[Path, ...]:
    """Where each result says which call it is of."""
    return tuple(
        f"messages[{i}].content[{j}].tool_use_id"
        for i, message in enumerate(messages)
        for j, block in enumerate(message.blocks)
        if isinstance(block, ToolResult)
    )


def check(messages: Sequence[Message]) -> None:
    """Raises ApiError 400 for blocks that are wrong where they stand, and for inputs out of bounds."""
    for i, message in enumerate(messages):
        ids: set[str] = set()
        spoken = False
        for j, block in enumerate(message.blocks):
            path = f"messages[{i}].content[{j}]"
            if isinstance(block, ToolUse):
                _check_call(block, path)
                if block.id in ids:
                    raise invalid(f"{path}.id", f"{block.id[:64]!r} is there twice")
                ids.add(block.id)
            elif isinstance(block, ToolResult) and spoken:
                raise invalid(path, "results of tools stand before the text of a message")
            spoken = spoken or isinstance(block, TextBlock)
        if len(ids) > MAX_CALLS:
            raise invalid(f"messages[{i}].content", f"more than {MAX_CALLS} calls of tools")


def _check_call(block: ToolUse, path: Path) -> None:
    if deeper_than(block.input, MAX_DEPTH):
        raise invalid(f"{path}.input", f"nested deeper than {MAX_DEPTH}")
    if len(block.call().arguments) > MAX_ARGUMENTS:
        raise invalid(f"{path}.input", f"longer than {MAX_ARGUMENTS} characters as JSON")


def known_only(messages: Any) -> Any:
    """`messages` freed of what is off. Raises ApiError 400 for blocks that are not known, or not that role's."""
    if not isinstance(messages, list):
        return messages
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def texts_only(content: Any, path: Path) -> Any:
    """As `known_only`, for blocks of which all must be text."""
    return _blocks(content, path, ALLOWED["system"])


def _message(message: Any, path: Path) -> Any:
    if not isinstance(message, dict) or "content" not in message:
        return message
    role = message.get("role")
    allowed = ALLOWED.get(role, frozenset(BLOCK_OFF)) if isinstance(role, str) else frozenset(BLOCK_OFF)
    return {**message, "content": _blocks(message["content"], f"{path}.content", allowed)}


def _blocks(content: Any, path: Path, allowed: frozenset[str]) -> Any:
    if not isinstance(content, list):
        return content
    return [
        _block(block, f"{path}[{i}]", allowed) if isinstance(block, dict) else block
        for i, block in enumerate(content)
    ]


def _block(block: Mapping[str, Any], path: Path, allowed: frozenset[str]) -> dict[str, Any]:
    kind = block.get("type")
    if not isinstance(kind, str):
        return dict(block)
    if kind not in allowed:
        reason = f"{kind[:64]!r}: only {' and '.join(sorted(allowed))} are supported here"
        raise invalid(f"{path}.type", reason, "unsupported_parameter")
    kept = without_off(block, BLOCK_OFF[kind], f"{path}.")
    if kind == "tool_result":
        kept["content"] = texts_only(kept.get("content", ""), f"{path}.content")
    return kept

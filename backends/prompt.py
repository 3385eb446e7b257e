"""What a model is asked, before any tokenizer has seen it."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

Option = bool | int | float | str

MAX_DEPTH = 64  # of schemas and arguments; what is nested deeper is not gone through


class ToolCall(msgspec.Struct, frozen=True):
    """A call that a model has made, as it made it: `arguments` is JSON text, not always valid."""

    id: str  # unique in a conversation; what is answered by `ChatMessage.tool_call_id`
    name: str
    arguments: str


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation, as a chat template sees it."""

    role: str
    content: str  # empty for an assistant that only calls
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()  # of role "assistant"
    tool_call_id: str | None = None  # of role "tool": the call that it is the result of

    @property
    def length(self) -> int:
        """In characters."""
        return len(self.content) + sum(len(call.name) + len(call.arguments) for call in self.tool_calls)


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that the model may call. `parameters`: the JSON schema of an object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None  # None: it takes none
    strict: bool = False  # arguments follow the schema in any case, not only where a call is required


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether tools are called. `name`: the one that must be, once; only with mode `required`.

    `parallel`: whether there may be several calls in one answer. `allowed`: the tools that may be called; None: all.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    parallel: bool = True
    allowed: tuple[str, ...] | None = None

    def admits(self, tool: Tool) -> bool:
        """Whether it may be called, where any is."""
        if self.name is not None:
            return tool.name == self.name
        return self.allowed is None or tool.name in self.allowed


class Prompt(msgspec.Struct, frozen=True):
    """What the model is asked: a conversation, a plain text to continue, or token ids. Exactly one of the three.

    `suffix`: the text behind a gap that is to be filled; `text` then stands before it.
    `options`: for the chat template, such as Qwen3's `enable_thinking`; one that does not know a name goes without it.
    """

    messages: tuple[ChatMessage, ...] = ()
    text: str | None = None
    suffix: str | None = None
    ids: tuple[int, ...] | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    options: dict[str, Option] = {}

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that may be called, of all that the model is told of."""
        return tuple(filter(self.tool_choice.admits, self.tools))

    @property
    def speaks_of_tools(self) -> bool:
        """Whether a model has to know what tools are to be asked this."""
        return bool(self.tools) or any(m.tool_calls or m.tool_call_id is not None for m in self.messages)

    @property
    def is_conversation(self) -> bool:
        return self.text is None and self.ids is None

    def lengths(self) -> Iterator[int]:
        """In characters: of the text and what is behind its gap, or of each message and each tool."""
        yield from (len(text) for text in (self.text, self.suffix) if text is not None)
        yield from (message.length for message in self.messages)
        yield from (len(msgspec.json.encode(tool)) for tool in self.tools)


def deeper_than(value: Any, depth: int) -> bool:
    """Whether objects and lists are nested deeper than `depth` in a JSON value."""
    level = [value]
    for _ in range(depth):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()

"""What every dialect asks of tools: their names, their schemas, and that there is something to choose from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backends.prompt import MAX_DEPTH, ChatMessage, Prompt, Tool, ToolChoice, deeper_than
from gateway.api.schemas import ENDLESS, endless
from gateway.api.strictjson import Path, invalid

MAX_TOOLS = 128
MAX_SCHEMA = 64 * 1024  # bytes of one function's, as JSON
MAX_CALLS = 128  # in one message
MAX_ARGUMENTS = 256 * 1024  # characters

ToolName = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,128}$")]
Description = Annotated[str, Meta(max_length=16 * 1024)]
CallId = Annotated[str, Meta(min_length=1, max_length=256)]
Arguments = Annotated[str, Meta(max_length=MAX_ARGUMENTS)]


@dataclass(frozen=True, slots=True)
class Fields:
    """A dialect's names for what errors are about; a tool's have `{}` where its number goes."""

    name: str
    schema: str
    chosen: str  # the tool that must be called
    allowed: str = ""  # one of those that may be; where a dialect can say so


def offering(messages: tuple[ChatMessage, ...], tools: Sequence[Tool], choice: ToolChoice) -> Prompt:
    """A conversation with tools; without any there is nothing to choose either."""
    return Prompt(messages=messages, tools=tuple(tools), tool_choice=choice) if tools else Prompt(messages)


def check(tools: Sequence[Tool], choice: ToolChoice, fields: Fields) -> None:
    """Raises ApiError 400 naming the field."""
    names: set[str] = set()
    for number, tool in enumerate(tools):
        if tool.name in names:
            raise invalid(fields.name.format(number), f"{tool.name!r} is there twice")
        names.add(tool.name)
        if tool.parameters is not None:
            path = fields.schema.format(number)
            _check_schema(tool.parameters, path)
            if _is_held(tool, choice) and endless(tool.parameters):
                raise invalid(path, ENDLESS)
    if choice.name is not None and choice.name not in names:
        raise invalid(fields.chosen, f"there is no tool {choice.name[:64]!r}")
    for number, name in enumerate(choice.allowed or ()):
        if name not in names:
            raise invalid(fields.allowed.format(number), f"there is no tool {name[:64]!r}")
    if choice.mode == "required" and not tools:
        raise invalid("tool_choice", "there are no tools to be called")


def _is_held(tool: Tool, choice: ToolChoice) -> bool:
    """Whether the arguments of its calls must follow its schema."""
    if choice.mode == "none" or not choice.admits(tool):
        return False
    return tool.strict or choice.mode == "required" or choice.allowed is not None


def _check_schema(schema: dict[str, Any], path: Path) -> None:
    """Of a function's parameters."""
    if schema.get("type", "object") != "object":
        raise invalid(f"{path}.type", "must be 'object': arguments have names")
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA:
        raise invalid(path, f"longer than {MAX_SCHEMA} bytes as JSON")
    if deeper_than(schema, MAX_DEPTH):
        raise invalid(path, f"nested deeper than {MAX_DEPTH}")

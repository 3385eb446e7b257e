"""The tools of a chat: which there are, whether they must be called, and how calls are told."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backends.backend import CallPiece
from backends.prompt import MAX_DEPTH, Tool, ToolCall, ToolChoice, deeper_than
from gateway.api.strictjson import Path, invalid

MAX_TOOLS = 128
MAX_SCHEMA = 64 * 1024  # bytes of one function's, as JSON

ToolName = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: ToolName
    description: Annotated[str, Meta(max_length=16 * 1024)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: Function

    def plain(self) -> Tool:
        function = self.function
        return Tool(function.name, function.description, function.parameters, bool(function.strict))


class FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class NamedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: FunctionName


Tools = Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)]
Choice = Literal["none", "auto", "required"] | NamedTool


def tool_choice(choice: Choice, parallel: bool) -> ToolChoice:
    if isinstance(choice, NamedTool):
        return ToolChoice("required", choice.function.name, parallel)
    return ToolChoice(choice, None, parallel)


def check(tools: list[FunctionTool], choice: Choice) -> None:
    """Raises ApiError 400 naming the field."""
    names: set[str] = set()
    for i, tool in enumerate(tools):
        function, path = tool.function, f"tools[{i}].function"
        if function.name in names:
            raise invalid(f"{path}.name", f"{function.name!r} is there twice")
        names.add(function.name)
        if function.parameters is not None:
            check_schema(function.parameters, f"{path}.parameters")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise invalid("tool_choice.function.name", f"there is no tool {choice.function.name[:64]!r}")
    if choice == "required" and not tools:
        raise invalid("tool_choice", "there are no tools to be called")


def check_schema(schema: dict[str, Any], path: Path) -> None:
    """Of a function's parameters. Raises ApiError 400."""
    if schema.get("type", "object") != "object":
        raise invalid(f"{path}.type", "must be 'object': arguments have names")
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA:
        raise invalid(path, f"longer than {MAX_SCHEMA} bytes as JSON")
    if deeper_than(schema, MAX_DEPTH):
        raise invalid(path, f"nested deeper than {MAX_DEPTH}")


def whole_call(call: ToolCall) -> dict[str, Any]:
    """A call, as messages have it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def call_pieces(pieces: Iterable[CallPiece]) -> list[dict[str, Any]]:
    """Pieces of calls, as chunks have them: id and name once, at the beginning of each, and one item a call."""
    told: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        item = told.setdefault(piece.index, {"index": piece.index, "function": {"arguments": ""}})
        if piece.id is not None:
            item |= {"id": piece.id, "type": "function"}
            item["function"]["name"] = piece.name
        item["function"]["arguments"] += piece.arguments
    return list(told.values())

"""The tools of a chat: which there are, whether they must be called, and how calls are told."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backends.backend import CallPiece
from backends.prompt import Tool, ToolCall, ToolChoice
from gateway.api.tools import MAX_TOOLS, Description, Fields

FIELDS = Fields(
    name="tools[{}].function.name",
    schema="tools[{}].function.parameters",
    chosen="tool_choice.function.name",
    allowed="tool_choice.allowed_tools.tools[{}].function.name",
)

ToolName = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: ToolName
    description: Description | None = None
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


class NamedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    function: FunctionName


class Allowed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedTools(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"
):
    allowed_tools: Allowed


Tools = Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)]
Choice = Literal["none", "auto", "required"] | NamedTool | AllowedTools


def tool_choice(choice: Choice, parallel: bool) -> ToolChoice:
    match choice:
        case NamedTool(function):
            return ToolChoice("required", function.name, parallel)
        case AllowedTools(allowed):
            names = tuple(tool.function.name for tool in allowed.tools)
            return ToolChoice(allowed.mode, None, parallel, names)
    return ToolChoice(choice, None, parallel)


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

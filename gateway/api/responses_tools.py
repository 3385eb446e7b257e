"""The tools of a response, which are functions, and whether they must be called."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backends.prompt import Tool, ToolChoice
from gateway.api.fields import Off, without_off
from gateway.api.strictjson import Path, invalid
from gateway.api.tools import MAX_TOOLS, Description, Fields, ToolName

FIELDS = Fields(
    name="tools[{}].name",
    schema="tools[{}].parameters",
    chosen="tool_choice.name",
    allowed="tool_choice.tools[{}].name",
)
TOOL_OFF: Off = {
    "allowed_callers": (["direct"],),
    "async": (False,),
    "defer_loading": (False,),
    "output_schema": (),
}


class FunctionTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`strict` that is not given means: where the schema is made for it."""

    type: Literal["function"]
    name: ToolName
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def plain(self) -> Tool:
        return Tool(self.name, self.description, self.parameters, self._strict)

    def told(self) -> dict[str, Any]:
        return {**msgspec.structs.asdict(self), "strict": self._strict}

    @property
    def _strict(self) -> bool:
        if self.strict is not None:
            return self.strict
        return self.parameters is not None and _is_closed(self.parameters)


class NamedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    name: str


class AllowedTools(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"
):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


Tools = Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)]
Choice = Literal["none", "auto", "required"] | NamedTool | AllowedTools


def tool_choice(choice: Choice, parallel: bool) -> ToolChoice:
    match choice:
        case NamedTool(name):
            return ToolChoice("required", name, parallel)
        case AllowedTools(mode, allowed):
            return ToolChoice(mode, None, parallel, tuple(tool.name for tool in allowed))
    return ToolChoice(choice, None, parallel)


def functions_only(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` of a body with its tools freed of what is off. Raises ApiError 400 for a tool that is no function."""
    kept = dict(fields)
    if isinstance(tools := kept.get("tools"), list):
        kept["tools"] = [
            _function(tool, f"tools[{i}]") if isinstance(tool, dict) else tool for i, tool in enumerate(tools)
        ]
    if isinstance(choice := kept.get("tool_choice"), dict):
        _check_choice(choice)
    return kept


def _check_choice(choice: Mapping[str, Any]) -> None:
    if choice.get("type") != "allowed_tools":
        _check_kind(choice, "tool_choice")
    elif isinstance(tools := choice.get("tools"), list):
        for i, tool in enumerate(tools):
            if isinstance(tool, dict):
                _check_kind(tool, f"tool_choice.tools[{i}]")


def _function(tool: Mapping[str, Any], path: Path) -> dict[str, Any]:
    _check_kind(tool, path)
    return without_off(tool, TOOL_OFF, f"{path}.")


def _check_kind(given: Mapping[str, Any], path: Path) -> None:
    kind = given.get("type")
    if isinstance(kind, str) and kind != "function":
        raise invalid(f"{path}.type", f"{kind[:64]!r}: only functions are supported", "unsupported_parameter")


def _is_closed(schema: Any) -> bool:
    """Whether every object in a schema needs all its properties and takes no others, as OpenAI's strict mode wants."""
    if isinstance(schema, list):
        return all(map(_is_closed, schema))
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties", {})
    if schema.get("type") == "object" or properties:
        closed = schema.get("additionalProperties") is False
        needed = schema.get("required", [])
        if not (closed and isinstance(properties, dict) and isinstance(needed, list)):
            return False
        if set(properties) != {name for name in needed if isinstance(name, str)}:
            return False
    return all(map(_is_closed, schema.values()))

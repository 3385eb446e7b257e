"""The tools of a message, which run at the client, and whether they must be called."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backends.prompt import Tool, ToolChoice
from gateway.api.fields import Off, without_off
from gateway.api.strictjson import Path, invalid
from gateway.api.tools import MAX_TOOLS, Description, Fields, ToolName

FIELDS = Fields("tools[{}].name", "tools[{}].input_schema", "tool_choice.name")
TOOL_OFF: Off = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "eager_input_streaming": (True,),  # inputs are always streamed as they are written
    "input_examples": ([],),
}


class CacheControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A hint, which changes nothing: prefixes are cached as they are, for the tenant alone."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class CustomTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: ToolName
    input_schema: dict[str, Any]
    type: Literal["custom"] = "custom"
    description: Description | None = None
    strict: bool = False
    cache_control: CacheControl | None = None

    def plain(self) -> Tool:
        return Tool(self.name, self.description, self.input_schema, self.strict)


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the four."""

    def plain(self) -> ToolChoice:
        raise NotImplementedError


class NoTool(Choice, frozen=True, tag_field="type", tag="none"):
    def plain(self) -> ToolChoice:
        return ToolChoice("none")


class Auto(Choice, frozen=True, kw_only=True, tag_field="type", tag="auto"):
    disable_parallel_tool_use: bool = False

    def plain(self) -> ToolChoice:
        return ToolChoice("auto", None, not self.disable_parallel_tool_use)


class AnyTool(Choice, frozen=True, kw_only=True, tag_field="type", tag="any"):
    disable_parallel_tool_use: bool = False

    def plain(self) -> ToolChoice:
        return ToolChoice("required", None, not self.disable_parallel_tool_use)


class NamedTool(Choice, frozen=True, kw_only=True, tag_field="type", tag="tool"):
    name: str
    disable_parallel_tool_use: bool = False

    def plain(self) -> ToolChoice:
        return ToolChoice("required", self.name, not self.disable_parallel_tool_use)


Tools = Annotated[list[CustomTool], Meta(max_length=MAX_TOOLS)]
AnyChoice = Auto | AnyTool | NamedTool | NoTool


def custom_only(tools: Any) -> Any:
    """`tools` freed of what is off. Raises ApiError 400 for a tool that would run at the server."""
    if not isinstance(tools, list):
        return tools
    return [_custom(tool, f"tools[{i}]") if isinstance(tool, dict) else tool for i, tool in enumerate(tools)]


def _custom(tool: Mapping[str, Any], path: Path) -> dict[str, Any]:
    if isinstance(kind := tool.get("type"), str) and kind != "custom":
        reason = f"{kind[:64]!r}: only custom tools are supported"
        raise invalid(f"{path}.type", reason, "unsupported_parameter")
    return without_off(tool, TOOL_OFF, f"{path}.")

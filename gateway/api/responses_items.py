"""Items of the Responses API: messages, calls of functions, and what came of them."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from backends.prompt import ToolCall
from gateway.api.fields import Off, without_off
from gateway.api.strictjson import Path, invalid
from gateway.api.tools import Arguments, CallId, ToolName
from gateway.archive import new_id
from sessions import Call, Turn

# What clients send back of an answer of ours when they continue a conversation themselves.
CALL_OFF: Off = {"async": (False,), "caller": ({"type": "direct"},), "created_by": (), "namespace": ()}
ITEM_OFF: dict[str, Off] = {
    "message": {"phase": ("final_answer",)},
    "function_call": CALL_OFF,
    "function_call_output": CALL_OFF,
}
PART_OFF: Off = {"annotations": ([],), "logprobs": ([],), "prompt_cache_breakpoint": ()}

Id = Annotated[str, Meta(min_length=1, max_length=128)]
Status = Literal["in_progress", "completed", "incomplete"]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["input_text", "output_text"]
    text: str


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="message"):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[Part], Meta(min_length=1)]
    id: Id | None = None
    status: Status = "completed"

    def turn(self) -> Turn:
        """`developer` is the newer word for `system`; chat templates know only the old one."""
        role = "system" if self.role == "developer" else self.role
        return Turn(role=role, content=_text(self.content))

    def told(self) -> dict[str, Any]:
        """As lists of items show it."""
        own: Literal["input_text", "output_text"] = (
            "output_text" if self.role == "assistant" else "input_text"
        )
        parts = [Part(own, self.content)] if isinstance(self.content, str) else self.content
        return told_message(
            self.id or new_id("msg"),
            self.role,
            [told_part(part.type, part.text) for part in parts],
            self.status,
        )


class FunctionCall(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function_call"
):
    call_id: CallId
    name: ToolName
    arguments: Arguments
    id: Id | None = None
    status: Status = "completed"

    def told(self) -> dict[str, Any]:
        call = ToolCall(self.call_id, self.name, self.arguments)
        return told_call(self.id or new_id("fc"), call, self.status)


class FunctionCallOutput(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function_call_output"
):
    call_id: CallId
    output: str | list[Part]
    name: ToolName | None = None
    id: Id | None = None
    status: Status = "completed"

    def turn(self) -> Turn:
        return Turn(role="tool", content=_text(self.output), name=self.name, answers=self.call_id)

    def told(self) -> dict[str, Any]:
        output = self.output if isinstance(self.output, str) else msgspec.to_builtins(self.output)
        return told_output(self.id or new_id("fco"), self.call_id, output, self.name, self.status)


Item = Message | FunctionCall | FunctionCallOutput


def turns_of(items: Iterable[Item]) -> tuple[Turn, ...]:
    """Calls belong to the answer that they follow on; those that follow on none are an answer without words."""
    turns: list[Turn] = []
    calls: list[Call] = []
    for item in items:
        if isinstance(item, FunctionCall):
            calls.append(Call(item.call_id, item.name, item.arguments))
        else:
            _close(turns, calls)
            turns.append(item.turn())
    _close(turns, calls)
    return tuple(turns)


def _close(turns: list[Turn], calls: list[Call]) -> None:
    if calls:
        said = turns.pop() if turns and turns[-1].role == "assistant" else Turn("assistant", "")
        turns.append(msgspec.structs.replace(said, calls=tuple(calls)))
        calls.clear()


def items_only(items: Any, path: Path) -> Any:
    """`items` freed of what is off. Raises ApiError 400 for one of another kind, or with more than text."""
    if not isinstance(items, list):
        return items
    return [_item(item, f"{path}[{i}]") if isinstance(item, dict) else item for i, item in enumerate(items)]


def check_ids(items: Iterable[Item], path: Path) -> None:
    """Raises ApiError 400 for an id that names two items, or two calls."""
    items_seen: set[str] = set()
    calls_seen: set[str] = set()
    for number, item in enumerate(items):
        if item.id in items_seen:
            raise invalid(f"{path}[{number}].id", "another item has this id")
        if item.id is not None:
            items_seen.add(item.id)
        if isinstance(item, FunctionCall):
            if item.call_id in calls_seen:
                raise invalid(f"{path}[{number}].call_id", "another call has this id")
            calls_seen.add(item.call_id)


def result_fields(items: Sequence[Item], path: Path) -> tuple[Path, ...]:
    """Where each result says which call it is of."""
    return tuple(
        f"{path}[{i}].call_id" for i, item in enumerate(items) if isinstance(item, FunctionCallOutput)
    )


def told_turn(turn: Turn, name: str) -> list[dict[str, Any]]:
    """A turn as the items that it is made of. `name`: what their ids end with."""
    if turn.answers is not None:
        return [told_output(f"fco_{name}", turn.answers, turn.content, turn.name)]
    calls = [
        told_call(_call_item(call, name), ToolCall(call.id, call.name, call.arguments)) for call in turn.calls
    ]
    if calls and not turn.content:
        return calls
    own = "output_text" if turn.role == "assistant" else "input_text"
    return [told_message(f"msg_{name}", turn.role, [told_part(own, turn.content)]), *calls]


def without(turn: Turn, name: str, item_id: str) -> Turn | None:
    """The turn without that item of it; None where nothing is left, the turn itself where it has no such item."""
    if all(item["id"] != item_id for item in told_turn(turn, name)):
        return turn
    content = "" if item_id == f"msg_{name}" else turn.content
    calls = tuple(call for call in turn.calls if item_id != _call_item(call, name))
    if turn.answers is not None or not (content or calls):
        return None
    return msgspec.structs.replace(turn, content=content, calls=calls)


def _call_item(call: Call, name: str) -> str:
    """Calls of one turn have ids of their own; what is made of them stays when another call goes."""
    return f"fc_{name}_{sha256(call.id.encode()).hexdigest()[:8]}"


def told_message(
    id: str, role: str, parts: list[dict[str, Any]], status: str = "completed"
) -> dict[str, Any]:
    return {"id": id, "type": "message", "status": status, "role": role, "content": parts}


def told_part(kind: str, text: str) -> dict[str, Any]:
    """A part of a message as it is told; texts of answers have room for what is not done here."""
    if kind == "input_text":
        return {"type": kind, "text": text}
    return {"type": kind, "text": text, "annotations": [], "logprobs": []}


def told_call(id: str, call: ToolCall, status: str = "completed") -> dict[str, Any]:
    return {
        "id": id,
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def told_output(
    id: str, call_id: str, output: str | list[Any], name: str | None, status: str = "completed"
) -> dict[str, Any]:
    told = {"id": id, "type": "function_call_output", "status": status, "call_id": call_id, "output": output}
    return told if name is None else told | {"name": name}


def _text(content: str | list[Part]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _item(item: Mapping[str, Any], path: Path) -> dict[str, Any]:
    kind = item.get("type") or "message"
    if not isinstance(kind, str):
        return dict(item)
    if kind not in ITEM_OFF:
        known = "only messages, function calls and their outputs are supported"
        raise invalid(f"{path}.type", known, "unsupported_parameter")
    kept = {**without_off(item, ITEM_OFF[kind], f"{path}."), "type": kind}
    for field in ("content", "output"):
        if isinstance(parts := kept.get(field), list):
            kept[field] = [
                _part(part, f"{path}.{field}[{i}]") if isinstance(part, dict) else part
                for i, part in enumerate(parts)
            ]
    return kept


def _part(part: Mapping[str, Any], path: Path) -> dict[str, Any]:
    if isinstance(kind := part.get("type"), str) and kind not in ("input_text", "output_text"):
        raise invalid(f"{path}.type", "only text is supported", "unsupported_parameter")
    return without_off(part, PART_OFF, f"{path}.")

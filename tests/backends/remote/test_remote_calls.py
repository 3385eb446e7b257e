"""Calls as servers stream them, each in its own way."""

import json
from typing import Any

import msgspec
import pytest

from backends.prompt import ToolCall
from backends.remote_calls import CallDelta, CallReader
from backends.tools.calls import joined


def read(*chunks: list[dict[str, Any]], parallel: bool = True) -> tuple[ToolCall, ...]:
    reader = CallReader(parallel=parallel)
    pieces = [p for chunk in chunks for p in reader.take(msgspec.convert(chunk, list[CallDelta]))]
    assert reader.called == bool(pieces)
    begun = [piece.index for piece in pieces if piece.id is not None]
    assert begun == list(range(len(begun)))
    return joined(pieces)


def item(arguments: Any = None, *, name: str | None = None, **fields: Any) -> dict[str, Any]:
    """As in a chunk; what is None is sent as null, as many servers do."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **fields}


ADD, NOW = ToolCall("a", "add", '{"x": 1}'), ToolCall("b", "now", "{}")


def test_as_openai_streams_them() -> None:
    assert read(
        [item("", name="add", id="a", index=0)],
        [item('{"x"', index=0)],
        [item(": 1}", index=0)],
        [item("", name="now", id="b", index=1)],
        [item("{}", index=1)],
    ) == (ADD, NOW)


def test_interleaved_and_several_in_a_chunk() -> None:
    assert read(
        [item('{"x"', name="add", id="a", index=0), item("{", name="now", id="b", index=1)],
        [item("}", index=1), item(": 1}", index=0)],
    ) == (ADD, NOW)


def test_every_call_has_the_index_0() -> None:
    """bifrost#1829: the arguments of all calls in one."""
    assert read(
        [item("", name="add", id="a", index=0)],
        [item('{"x": 1}', index=0)],
        [item("", name="now", id="b", index=0)],
        [item("{}", index=0)],
    ) == (ADD, NOW)
    assert read(
        [item('{"x"', name="add", id="a", index=0), item("{", name="now", id="b", index=0)],
        [item(": 1}", id="a", index=0), item("}", id="b", index=0)],
    ) == (ADD, NOW)


@pytest.mark.parametrize("fields", [{"id": "a", "index": 0}, {"index": 0}])
def test_the_name_comes_with_each_piece(fields: dict[str, Any]) -> None:
    """maka#1976: `addaddadd`."""
    (call,) = read([item('{"x"', name="add", **fields)], [item(": 1}", name="add", **fields)])
    assert (call.name, call.arguments) == ("add", '{"x": 1}')


def test_nothing_is_numbered_and_calls_come_whole() -> None:
    calls = read([item({"x": 1}, name="add"), item({"x": 2}, name="add")], [item({}, name="now")])
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("add", {"x": 1}), ("add", {"x": 2}), ("now", {})
    ]  # fmt: skip
    assert len({call.id for call in calls}) == 3 and all(call.id.startswith("call_") for call in calls)


def test_ids_may_be_empty() -> None:
    (call,) = read([item("{", name="now", id="", index=0)], [item("}", id="", index=0)])
    assert call.id.startswith("call_") and call.arguments == "{}"


def test_arguments_of_no_call_are_none() -> None:
    assert read([item("{}", index=0)], [{"index": 0}], [item(index=1)]) == ()


def test_without_parallel_calls_the_first_is_the_last() -> None:
    assert read(
        [item('{"x": 1}', name="add", id="a", index=0)],
        [item("{}", name="now", id="b", index=1)],
        parallel=False,
    ) == (ADD,)

"""Pieces of calls, joined."""

from backends.prompt import ToolCall
from backends.tools.calls import CallPiece, joined, new_call_id


def test_interleaved_pieces_make_whole_calls() -> None:
    pieces = [
        CallPiece(index=0, id="call_a", name="add"),
        CallPiece(index=0, arguments='{"a":'),
        CallPiece(index=1, id="call_b", name="now", arguments="{"),
        CallPiece(index=0, arguments=" 1}"),
        CallPiece(index=1, arguments="}"),
    ]
    assert joined(pieces) == (ToolCall("call_a", "add", '{"a": 1}'), ToolCall("call_b", "now", "{}"))


def test_no_pieces_are_no_calls() -> None:
    assert joined([]) == ()


def test_ids_are_new_and_begin_as_clients_expect() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(id.startswith("call_") and id[5:].isalnum() and len(id) == 29 for id in ids)

"""An answer in parts: which there are, in which order they begin and end, however the deltas are cut."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from backends.backend import CallPiece, Delta
from backends.prompt import ToolCall
from gateway.api.parts import CallPart, Part, PartsRendering


class Recording(PartsRendering):
    """Tells what is asked of it."""

    def opening(self, answer: Any) -> Any: ...

    def closing(self, ending: Any) -> Any: ...

    def broken(self, error: Any) -> Any: ...

    def whole(self, answer: Any, deltas: Any, ending: Any) -> Any: ...

    def begun(self, part: Part) -> Sequence[dict[str, Any]]:
        return [{"begun": part.number, "name": part.name if isinstance(part, CallPart) else None}]

    def added(self, part: Part, written: str) -> dict[str, Any]:
        return {"added": part.number, "written": written}

    def ended(self, part: Part) -> Sequence[dict[str, Any]]:
        return [{"ended": part.number, "written": part.written}]


def begin(index: int, name: str = "f") -> CallPiece:
    return CallPiece(index=index, id=f"c{index}", name=name)


def more(index: int, arguments: str) -> CallPiece:
    return CallPiece(index=index, arguments=arguments)


def told(*deltas: Delta) -> list[dict[str, Any]]:
    rendering = Recording()
    events = [event for delta in deltas for event in rendering.piece(delta)]
    return [*events, *rendering.last_ended()]


def test_text_then_calls() -> None:
    assert told(
        Delta(text="I "),
        Delta(text="look.", calls=(begin(0, "f"),)),
        Delta(calls=(more(0, "{"), more(0, "}"), begin(1, "g"), more(1, "{}"))),
    ) == [
        {"begun": 0, "name": None}, {"added": 0, "written": "I "}, {"added": 0, "written": "look."},
        {"ended": 0, "written": "I look."},
        {"begun": 1, "name": "f"}, {"added": 1, "written": "{"}, {"added": 1, "written": "}"},
        {"ended": 1, "written": "{}"},
        {"begun": 2, "name": "g"}, {"added": 2, "written": "{}"}, {"ended": 2, "written": "{}"},
    ]  # fmt: skip


def test_text_behind_a_call_that_ends_with_it() -> None:
    events = told(Delta(calls=(begin(0), more(0, "{"))), Delta(text="Done.", calls=(more(0, "}"),)))
    assert [event["written"] for event in events if "ended" in event] == ["{}", "Done."]


def test_nothing_is_an_empty_text() -> None:
    assert told(Delta(), Delta()) == [{"begun": 0, "name": None}, {"ended": 0, "written": ""}]
    silent = Recording()
    silent.hear([Delta()])
    assert (silent.last_part().written, len(silent.parts)) == ("", 1)


def test_a_call_without_arguments_begins_once() -> None:
    assert told(Delta(calls=(begin(0),)), Delta(), Delta(calls=(begin(1),))) == [
        {"begun": 0, "name": "f"}, {"ended": 0, "written": ""}, {"begun": 1, "name": "f"}, {"ended": 1, "written": ""},
    ]  # fmt: skip


PIECES = [begin(0), more(0, '{"a":'), more(0, "1}"), begin(1, "g"), more(1, "{}")]


@given(st.lists(st.booleans(), min_size=len(PIECES), max_size=len(PIECES)))
def test_the_cut_of_deltas_changes_nothing(cuts: list[bool]) -> None:
    deltas, held = [Delta(text="Hi")], list[CallPiece]()
    for piece, cut in zip(PIECES, cuts, strict=True):
        held.append(piece)
        if cut:
            deltas.append(Delta(calls=tuple(held)))
            held = []
    deltas.append(Delta(calls=tuple(held)))
    streamed, whole = Recording(), Recording()
    for delta in deltas:
        streamed.piece(delta)
    whole.hear(deltas)
    assert streamed.text == whole.text == "Hi"
    assert streamed.calls == whole.calls == (ToolCall("c0", "f", '{"a":1}'), ToolCall("c1", "g", "{}"))

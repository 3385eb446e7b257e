"""Answers in the hermes format, cut anywhere."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.prompt import ToolCall
from backends.tools.calls import CallPiece, joined
from backends.tools.formats import FORMATS
from backends.tools.parser import CallParser

HERMES, LLAMA = FORMATS
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SUM = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}"}]}}\n</tool_call>'
Told = tuple[str, list[tuple[str, str]]]
CITY, TERMS = ("weather", '{"city": "Paris"}'), ("add", '{"a": 1, "b": [2, {"c": "}"}]}')


def parse(pieces: Sequence[str], **options: Any) -> tuple[str, tuple[ToolCall, ...]]:
    parser = CallParser(HERMES, **options)
    *before, last = pieces or [""]
    said = [*(parser.push(piece) for piece in before), parser.finish(last)]
    calls = joined(piece for each in said for piece in each.calls)
    assert parser.called == bool(calls)
    return "".join(each.text for each in said), calls


def told(*pieces: str, **options: Any) -> Told:
    """Without the ids, which are random."""
    text, calls = parse(pieces, **options)
    assert len({call.id for call in calls}) == len(calls)
    return text, [(call.name, call.arguments) for call in calls]


ANSWERS: dict[str, Told] = {
    "Hello": ("Hello", []),
    " Hello \n": (" Hello \n", []),
    "": ("", []),
    WEATHER: ("", [CITY]),
    WEATHER + "\n": ("", [CITY]),
    f"{WEATHER}\n{SUM}": ("", [CITY, TERMS]),
    WEATHER + SUM: ("", [CITY, TERMS]),
    f"Let me see.\n{WEATHER}": ("Let me see.", [CITY]),
    f"One.\n{WEATHER}\nTwo.\n{SUM}\nThree.\n": ("One.Two.Three.\n", [CITY, TERMS]),
    # Marks in a string are part of it.
    '<tool_call>{"name":"say","arguments":{"text":"</tool_call> \\" {"}}</tool_call>': (
        "", [("say", '{"text":"</tool_call> \\" {"}')]
    ),
    # Another order, and what else models write.
    '<tool_call>\n{"arguments": {"city": "Paris"}, "name": "weather"}\n</tool_call>': ("", [CITY]),
    '<tool_call>\n{"name": "now"}\n</tool_call>': ("", [("now", "{}")]),
    '<tool_call>\n{"name": "weather", "parameters": {"city": "Paris"}}\n</tool_call>': ("", [CITY]),
    '<tool_call>\n{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}\n</tool_call>': ("", [CITY]),
    '<tool_call>\n{{"name": "weather", "arguments": {"city": "Paris"}}}\n</tool_call>': ("", [CITY]),
    '<tool_call>\n{{"arguments": {"city": "Paris"}, "name": "weather"}}\n</tool_call>': ("", [CITY]),
    # The mark or a brace is forgotten, or the answer is cut off.
    WEATHER.removesuffix("\n</tool_call>"): ("", [CITY]),
    WEATHER.replace("}}", "}"): ("", [CITY]),
    WEATHER.removesuffix("\n</tool_call>") + "\n" + SUM: ("", [CITY, TERMS]),
    WEATHER.replace("}}", "") + SUM: ("", [("weather", '{"city": "Paris"\n'), TERMS]),
    '<tool_call>\n{"name": "weather", "arguments": {"ci': ("", [("weather", '{"ci')]),
    '<tool_call>\n{"arguments": {"city": "Paris"}, "name": "weather"}': ("", [CITY]),
    # No calls after all.
    " <tool_call>\nnot json\n</tool_call> bye": (" <tool_call>\nnot json\n</tool_call> bye", []),
    ' <tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>.': (
        ' <tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>.', []
    ),
    '<tool_call>\n{"name": "a b", "arguments": {}}\n</tool_call>': (
        '<tool_call>\n{"name": "a b", "arguments": {}}\n</tool_call>', []
    ),
    "a < b, <tool> and <tool_calls>": ("a < b, <tool> and <tool_calls>", []),
    "<tool_call": ("<tool_call", []),
    "Write \n<tool_call>": ("Write \n<tool_call>", []),
    '<tool_call>{"name": "wea': ('<tool_call>{"name": "wea', []),
    f"<tool_call>\n[1]\n</tool_call>\n{WEATHER}": ("<tool_call>\n[1]\n</tool_call>", [CITY]),
    f"The mark <tool_call> comes first: {WEATHER}": ("The mark <tool_call> comes first:", [CITY]),
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_in_one_piece_and_in_single_characters(answer: str) -> None:
    assert told(answer) == ANSWERS[answer]
    assert told(*answer) == ANSWERS[answer]


@given(st.sampled_from(sorted(ANSWERS)), st.data())
def test_cuts_change_nothing(answer: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert told(*pieces) == ANSWERS[answer]


@given(st.text(st.sampled_from('<>/tool_cal{}[]" \n\\:,namerguts1'), max_size=60))
def test_whatever_is_written_nothing_breaks_and_cuts_change_nothing(answer: str) -> None:
    text, calls = told(answer)
    assert told(*answer) == (text, calls)
    if not calls:
        assert text == answer


PARTS = [
    "<tool_call>", "</tool_call>", "<tool", '{"name": "f", "arguments": {"a": 1}}', '{"name": "f", "arguments": {',
    '{{"name": "g", "arguments": {}}}', '{"arguments": {}, "name": "f"}', "```json", "```", '"', "}", "{", "\n", "a ",
]  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=9), st.sampled_from([frozenset(), frozenset({"f", "g"})]))
def test_any_order_of_what_means_something(parts: list[str], bare: frozenset[str]) -> None:
    """A mark that no call follows on is text, and what comes next may be a call all the same."""
    answer = "".join(parts)
    assert told(answer, bare=bare) == told(*answer, bare=bare) == told(*parts, bare=bare)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=3), st.booleans(), st.data())
def test_any_arguments_come_through(arguments: dict[str, object], ascii: bool, data: st.DataObject) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii)
    answer = f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'
    cut = data.draw(st.integers(0, len(answer)))
    assert told(answer[:cut], answer[cut:]) == ("", [("f", written)])


def test_a_call_is_told_while_it_is_written() -> None:
    parser = CallParser(HERMES)
    said = [parser.push(piece) for piece in ("I look.\n", "<tool", "_call>", '\n{"name": "weather"')]
    assert [each.text for each in said] == ["I look.", "", "", ""] and not any(each.calls for each in said)
    begun = parser.push(', "arguments": {"ci').calls
    assert [(piece.index, piece.name, piece.arguments) for piece in begun] == [
        (0, "weather", ""),
        (0, None, '{"ci'),
    ]
    assert parser.push('ty": "Pa').calls == (CallPiece(index=0, arguments='ty": "Pa'),)
    assert parser.push('ris"}').calls == (CallPiece(index=0, arguments='ris"}'),)
    assert parser.push("}\n</tool_").calls == parser.push("call>\n").calls == ()
    (second, *_) = parser.push(SUM).calls
    assert (second.index, second.name) == (1, "add")


def test_text_is_not_held_longer_than_it_may_be_a_mark() -> None:
    parser = CallParser(HERMES)
    assert parser.push("a <tool").text == "a"
    assert parser.push("box> b").text == " <toolbox> b"
    assert parser.push(" <tool_call> is a mark").text == " <tool_call> is a mark"


def test_without_parallel_calls_the_first_is_the_last() -> None:
    assert told(f"Text.\n{WEATHER}\n{SUM}\nmore", parallel=False) == ("Text.", [CITY])
    assert told(*f"{WEATHER}{SUM}", parallel=False) == ("", [CITY])
    assert told("No call.", parallel=False) == ("No call.", [])


BARE: dict[str, Told] = {
    '{"name": "weather", "arguments": {"city": "Paris"}}': ("", [CITY]),
    '```json\n{\n  "name": "weather",\n  "arguments": {"city": "Paris"}\n}\n```': ("", [CITY]),
    '```\n{"name": "weather", "arguments": {"city": "Paris"}}\n```\nThere.': ("There.", [CITY]),
    '<tools>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tools>': ("", [CITY]),
    '{"name": "weather", "arguments": {"city": "Paris"}}\n' + SUM: ("", [CITY, TERMS]),
    '{"name": "weather", "arguments": {"city": "Paris"}}\n'
    '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}"}]}}': ("", [CITY, TERMS]),
    f"{WEATHER}\nThere.": ("There.", [CITY]),
    # Only of tools that are there, only at the beginning, and only what is written like a call.
    '{"name": "Paris", "arguments": {"city": "Paris"}}': (
        '{"name": "Paris", "arguments": {"city": "Paris"}}',
        [],
    ),
    'So: {"name": "weather", "arguments": {}}': ('So: {"name": "weather", "arguments": {}}', []),
    '{"name": "weather", "city": "Paris"}': ('{"name": "weather", "city": "Paris"}', []),
    '{"name": "weather", "arguments": "none"}': ('{"name": "weather", "arguments": "none"}', []),
    '```json\n{"a": 1}\n```': ('```json\n{"a": 1}\n```', []),
    "```js\nf()\n```": ("```js\nf()\n```", []),
    '\n{"name": "wea': ('\n{"name": "wea', []),
    " \n": (" \n", []),
    "```": ("```", []),
}


@pytest.mark.parametrize("answer", BARE)
def test_small_models_leave_the_marks_out(answer: str) -> None:
    assert told(answer, bare={"weather", "add"}) == BARE[answer]
    assert told(*answer, bare={"weather", "add"}) == BARE[answer]


@pytest.mark.parametrize("answer", ANSWERS)
def test_marks_are_known_all_the_same(answer: str) -> None:
    assert told(*answer, bare={"weather", "add"}) == ANSWERS[answer]


@given(st.text(st.sampled_from('`json{}[]" \n:,namergutsf1<>/ol'), max_size=40), st.booleans())
def test_without_marks_too_cuts_change_nothing(answer: str, called: bool) -> None:
    answer = ('{"name": "f", "arguments": {' if called else "") + answer
    text, calls = told(answer, bare={"f"})
    assert told(*answer, bare={"f"}) == (text, calls)
    assert bool(calls) or text == answer


def test_text_that_begins_like_json_is_let_go_as_soon_as_it_is_none_of_the_tools() -> None:
    parser = CallParser(HERMES, bare={"weather"})
    assert parser.push('{"name": "we').text == ""
    assert parser.push("ll").text == '{"name": "well'


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"name": "weather", "parameters": {"city": "Paris"}}', ("", [CITY])),
        ('\n{"name": "weather", "parameters": {"city": "Paris"}}\n', ("", [CITY])),
        ("Hello <tool_call> {}", ("Hello <tool_call> {}", [])),
        (
            '```\n{"name": "weather", "parameters": {}}\n```',
            ('```\n{"name": "weather", "parameters": {}}\n```', []),
        ),
        ('{"name": "other", "parameters": {}}', ('{"name": "other", "parameters": {}}', [])),
        ('{"name": "weather", "parameters": {"ci', ("", [("weather", '{"ci')])),
        ("", ("", [])),
    ],
)
def test_a_format_without_marks(answer: str, expected: Told) -> None:
    for pieces in ([answer], list(answer)):
        parser = CallParser(LLAMA, bare={"weather"})
        said = [*(parser.push(piece) for piece in pieces), parser.finish("")]
        calls = joined(piece for each in said for piece in each.calls)
        heard = "".join(each.text for each in said), [(call.name, call.arguments) for call in calls]
        assert heard == expected

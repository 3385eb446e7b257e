"""The strict reader, on a type of its own that has every kind of field."""

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from gateway.strictyaml import Mistake, dotted, nearest, read

Word = Annotated[str, Meta(pattern="^[a-z]+$", description="one word")]


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Word


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: Annotated[str, Meta(min_length=1)] = "t"
    plain: Annotated[str, Meta(pattern="^x+$")] = "x"
    whole: Annotated[int, Meta(ge=0, lt=10, multiple_of=3)] = 0
    real: Annotated[float, Meta(gt=-1, le=2)] = 0.0
    flag: bool = False
    choice: Literal["a", "b"] = "a"
    maybe: int | None = 5
    inner: Inner = Inner("w")
    many: Annotated[tuple[Inner, ...], Meta(min_length=1)] = (Inner("w"),)
    names: dict[Word, int] = {}


def mistakes(text: str) -> list[str]:
    _, document = read(text, "f", Sample)
    return [str(mistake) for mistake in document.mistakes]


def test_a_full_document_is_read() -> None:
    text = """
text: some text
plain: 'xx'
whole: 6
real: 1.5
flag: true
choice: b
maybe: null
inner: {name: v}
many:
  - name: u
  - &anchor {name: v}
  - *anchor
names: {one: 1}
"""
    value, document = read(text, "f", Sample)
    assert value == Sample(
        "some text",
        "xx",
        6,
        1.5,
        True,
        "b",
        None,
        Inner("v"),
        (Inner("u"), Inner("v"), Inner("v")),
        {"one": 1},
    )
    assert document.mistakes == []
    assert document.lines[("many", 1, "name")] == 12


def test_an_empty_mapping_takes_the_defaults() -> None:
    assert read("{}", "f", Sample)[0] == Sample()


@pytest.mark.parametrize("written", ["no", "0123", "1e5", "2024-01-01", "1:30", "'null'", "true", "0x1f"])
def test_text_stays_as_written_where_text_is_due(written: str) -> None:
    value, _ = read(f"text: {written}", "f", Sample)
    assert value is not None and value.text == written.strip("'")


@pytest.mark.parametrize(
    ("written", "expected"),
    [("1", 1.0), ("1e0", 1.0), (".5", 0.5), ("+2.", 2.0), ("-.5", -0.5), ("0.000_1", None), ("0_1.5", 1.5)],
)
def test_numbers(written: str, expected: float | None) -> None:
    value, document = read(f"real: {written}", "f", Sample)
    assert value is not None
    assert (value.real if not document.mistakes else None) == expected


CASES = [
    ("text:", "f:1: text: expected text, got nothing"),
    ("text: ''", "f:1: text: must not be empty"),
    ("text: [a]", "f:1: text: expected text, got a list"),
    ("text: {a: b}", "f:1: text: expected text, got a mapping"),
    ("text: !secret x", "f:1: text: expected text, got the tag !secret"),
    ("text: !!binary x", "f:1: text: expected text, got the tag !!binary"),
    ("plain: y", "f:1: plain: must be text like ^x+$"),
    ("whole: high", "f:1: whole: expected an integer, got text"),
    ("whole: 3.0", "f:1: whole: expected an integer, got another number"),
    ("whole: 03", "f:1: whole: expected an integer, got another number"),
    ("whole: 1:30", "f:1: whole: expected an integer, got text"),
    ("whole: '3'", "f:1: whole: expected an integer, got text in quotes"),
    ("whole: true", "f:1: whole: expected an integer, got text"),
    ("whole:", "f:1: whole: expected an integer, got nothing"),
    ("whole: -3", "f:1: whole: must be at least 0, not -3"),
    ("whole: 1_2", "f:1: whole: must be below 10, not 12"),
    ("whole: 4", "f:1: whole: must be a multiple of 3, not 4"),
    ("real: -1", "f:1: real: must be above -1, not -1"),
    ("real: 2.5", "f:1: real: must be at most 2, not 2.5"),
    ("real: 3s", "f:1: real: expected a number, got text"),
    ("real: .nan", "f:1: real: expected a number, got text"),
    ("real: .inf", "f:1: real: expected a number, got text"),
    ("real: 1e999", "f:1: real: expected a number, got text"),
    ("real: .", "f:1: real: expected a number, got text"),
    ("real: e5", "f:1: real: expected a number, got text"),
    ("real: '1'", "f:1: real: expected a number, got text in quotes"),
    ("flag: yes", "f:1: flag: expected true or false, got text"),
    ("flag: 'true'", "f:1: flag: expected true or false, got text in quotes"),
    ("choice: c", "f:1: choice: must be one of a, b"),
    ("maybe: x", "f:1: maybe: expected an integer, got text"),
    ("inner:", "f:1: inner: expected a mapping, got nothing"),
    ("inner: w", "f:1: inner: expected a mapping, got text"),
    (
        "inner: !!python/object:os.system {}",
        "f:1: inner: expected a mapping, got the tag !!python/object:os.system",
    ),
    ("inner: !!set {name}", "f:1: inner: expected a mapping, got the tag !!set"),
    ("inner: {}", "f:1: inner.name: is missing"),
    ("inner: {name: v, <<: {name: w}}", 'f:1: inner["<<"]: unknown key; known: name'),
    ("inner: {name: v, nam: w}", "f:1: inner.nam: unknown key; did you mean name?"),
    ("inner: {name: v, [a]: w}", "f:1: inner: a key must be text"),
    ("inner: {name: v,\n name: w}", "f:2: inner.name: is given twice, first on line 1"),
    ("inner: {name: W}", "f:1: inner.name: must be one word"),
    ("many: {}", "f:1: many: expected a list, got a mapping"),
    ("many: []", "f:1: many: needs at least 1 entry"),
    ("many:\n- {name: v}\n- w", "f:3: many[1]: expected a mapping, got text"),
    ("many: &m [*m]", "f:1: many[0]: expected a mapping, got a list"),
    ("names: {A: 1}", "f:1: names.A: its name must be one word"),
    ("names: {a: x}", "f:1: names.a: expected an integer, got text"),
    ("a: [", "f:1: not YAML: expected the node content, but found '<stream end>'"),
    ("text: a\n\tb: c", "f:2: not YAML: found character '\\t' that cannot start any token"),
    ("text: a\n---\ntext: b", "f:2: not YAML: but found another document"),
    ("- a", "f:1: expected a mapping, got a list"),
    ("", "f: is empty"),
    ("# nothing", "f: is empty"),
    ("[" * 100_000, "f: nested too deeply"),
]


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[case[0][:30] for case in CASES])
def test_a_mistake_is_told_with_line_path_and_reason(text: str, expected: str) -> None:
    assert mistakes(text) == [expected]


def test_a_character_that_yaml_forbids() -> None:
    (told,) = mistakes("text: \x00")
    assert told.startswith("f: not YAML: unacceptable character #x0000")


def test_what_cannot_be_read_leaves_the_rest_readable() -> None:
    value, document = read("whole: x\nmany: [{name: 'X'}, 3, {name: v}]\ninner: {}", "f", Sample)
    assert value == Sample(many=(Inner(""), Inner(""), Inner("v")), inner=Inner(""))
    assert [mistake.path for mistake in document.mistakes] == [
        ("whole",),
        ("many", 0, "name"),
        ("many", 1),
        ("inner", "name"),
    ]


def test_doubt_spreads_to_what_holds_a_mistake_and_to_its_parts() -> None:
    _, document = read("inner: {nam: v}\nmany: x", "f", Sample)
    assert all(
        document.doubtful(path) for path in [("inner",), ("inner", "nam"), ("many",), ("many", 0, "name")]
    )
    assert not any(document.doubtful(path) for path in [("whole",), ("names", "a")])


def test_no_tag_makes_anything_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("run") / "touched"
    assert mistakes(f"text: !!python/object/apply:os.system ['touch {target}']")
    assert not target.exists()


def test_paths_in_words() -> None:
    assert dotted(()) == ""
    assert dotted(("a", 0, "b", 12)) == "a[0].b[12]"
    assert dotted(("aliases", "gpt-3.5")) == 'aliases["gpt-3.5"]'


def test_a_mistake_without_a_document() -> None:
    assert str(Mistake("presets", None, ("x",), "no")) == "presets: x: no"
    assert str(Mistake("f", 3, (), "no")) == "f:3: no"


def test_nearest() -> None:
    assert nearest("colour", ["color", "size"]) == "did you mean color?"
    assert nearest("zzz", ["color", "size"]) == "known: color, size"
    assert nearest("zzz", []) == "known: none"

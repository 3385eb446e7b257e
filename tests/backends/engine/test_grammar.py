import json
import random
import re
from collections.abc import Iterable
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine import grammar
from backends.engine.batch import Words
from backends.engine.grammar import Constraint, GrammarCompiler, GrammarError
from backends.wire import Grammar, Vocabulary

BYTES = [bytes([byte]) for byte in range(256)]
LONGER = ["an", "and", "{}", '{"', '":', '",', "true", "null", "12", " \n", "ž", "žl", "👍", "<call>", ""]
DATA = [b"", b"", *BYTES, *(text.encode() for text in LONGER)]
END, STOP, TOOL = 0, 1, len(DATA) - 1
SIZE = len(DATA) + 5  # padded
NOBODY: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    names = {END: "<end>", STOP: "<stop>", TOOL: "<tool>"}
    return GrammarCompiler(Vocabulary(DATA, names), frozenset({END, STOP}), SIZE)


def ids(words: Words) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def allowed(constraint: Constraint, banned: frozenset[int] = NOBODY, ending: bool = True) -> set[int]:
    return ids(constraint.allowed(banned, ending=ending))


def spelled(sentences: Iterable[bytes], said: bytes) -> set[int]:
    """The oracle, for a language that can be written down: what may follow `said`."""
    known = list(sentences)
    tokens = {id for id, data in enumerate(DATA) if data}
    may = {id for id in tokens if any(sentence.startswith(said + DATA[id]) for sentence in known)}
    return may | ({END, STOP} if said in known else set())


def say(constraint: Constraint, chance: random.Random, most: int = 2000) -> bytes:
    """A sentence, as a model without any sense would find it."""
    said = b""
    for _ in range(most):
        if constraint.complete:
            return said
        token = chance.choice(sorted(allowed(constraint)))
        if token in (END, STOP):
            return said
        said += DATA[token]
        constraint.accept(token)
    raise AssertionError(f"no end after {said[:200]!r}")


LANGUAGES: list[tuple[Grammar, list[str]]] = [
    (Grammar("regex", "a|an|and|žluť"), ["a", "an", "and", "žluť"]),
    (Grammar("regex", "(a|n){1,2}d?"), [x + y + z for x in "an" for y in ("", "a", "n") for z in ("", "d")]),
    (Grammar("regex", "^x?/\n$"), ["/\n", "x/\n"]),
    (Grammar("json_schema", '{"enum": ["an", 12, null, true]}'), ['"an"', "12", "null", "true"]),
    (Grammar("json_schema", '{"const": "an", "format": "password"}'), ['"an"']),
    (
        Grammar("json_schema", '{"const": {"k": [1]}, "x-guidance": {"whitespace_flexible": false}}'),
        ['{"k":[1]}'],
    ),
    (Grammar("lark", 'start: "a" ("n" | "nd")'), ["an", "and"]),
    (Grammar("lark", 'start: "<call>"'), ["<call>"]),
    (Grammar("lark", 'start: "[temperature=" | "b"'), ["[temperature=", "b"]),
]


@pytest.mark.parametrize(("grammar", "sentences"), LANGUAGES)
def test_exactly_what_can_become_a_sentence_may_follow(
    compiler: GrammarCompiler, grammar: Grammar, sentences: list[str]
) -> None:
    language = [sentence.encode() for sentence in sentences]
    places = [(compiler.compile(grammar), b"")]
    for constraint, said in places:
        may = spelled(language, said)
        assert constraint.complete == (may <= {END, STOP})
        assert allowed(constraint) == may
        for token in may - {END, STOP}:
            further = constraint.copy()
            further.accept(token)
            places.append((further, said + DATA[token]))
    assert {said for constraint, said in places if END in allowed(constraint)} == set(language)


SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "maxProperties": 2},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {"type": "string", "maxLength": 5},
    {"type": "integer", "minimum": -3, "exclusiveMaximum": 1000},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
    {"type": "string", "format": "date"},
    {"anyOf": [{"type": "null"}, {"type": "integer"}, {"const": {"a": 1}}]},
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": ["integer", "null"]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"left": {"$ref": "#/$defs/tree"}, "value": {"enum": ["x", "žlutý"]}},
                "required": ["value"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
    {
        "allOf": [{"properties": {"a": {"type": "boolean"}}}, {"required": ["a"], "maxProperties": 1}],
        "type": "object",
    },
]


def check(compiler: GrammarCompiler, schema: Any, seed: int) -> None:
    grammar = Grammar("json_schema", json.dumps(schema))
    said = say(compiler.compile(grammar), random.Random(seed)).decode()
    jsonschema.validate(json.loads(said), schema, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_every_sentence_of_a_schema_satisfies_it(compiler: GrammarCompiler, schema: Any) -> None:
    for seed in range(20):
        check(compiler, schema, seed)


LEAVES: list[dict[str, Any]] = [
    {"type": "null"}, {"type": "boolean"}, {"type": "integer", "maximum": 99}, {"type": "string", "maxLength": 3},
    {"enum": ["a", 1, None, [True], {"b": 2.5}]}, {"const": "ž\n\"\\"},
]  # fmt: skip


def _arrays(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 3)
    )


def _objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def make(properties: dict[str, Any], needed: bool) -> dict[str, Any]:
        required = list(properties) if needed else []
        closed = {"type": "object", "properties": properties, "additionalProperties": False}
        return closed | {"required": required}

    return st.builds(make, st.dictionaries(st.text(max_size=3), inner, max_size=3), st.booleans())


@settings(max_examples=100)
@given(
    st.recursive(st.sampled_from(LEAVES), lambda inner: _arrays(inner) | _objects(inner), max_leaves=5),
    st.integers(0, 2**32),
)
def test_every_sentence_of_any_small_schema_satisfies_it(
    compiler: GrammarCompiler, schema: dict[str, Any], seed: int
) -> None:
    check(compiler, schema, seed)


def test_blanks_do_not_go_on_for_ever(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(Grammar("json_schema", '{"type": "array"}'))
    for token in map(DATA.index, [b"[", b"\n", *[b" "] * 40]):
        constraint.accept(token)
    assert not {DATA[id] for id in allowed(constraint)} & {b" ", b"\n", b"\t"}


def test_properties_come_in_the_order_of_the_schema(compiler: GrammarCompiler) -> None:
    properties = {name: {"type": "null"} for name in "zbya"}
    schema = {
        "type": "object",
        "properties": properties,
        "required": list("abyz"),
        "additionalProperties": False,
    }
    said = say(compiler.compile(Grammar("json_schema", json.dumps(schema))), random.Random(0))
    assert list(json.loads(said)) == list("zbya")


def test_a_grammar_may_name_control_tokens(compiler: GrammarCompiler) -> None:
    """A text of the same characters is not meant by the name, nor the token by the text."""
    constraint = compiler.compile(Grammar("lark", 'start: <tool> %json {"const": 12} <stop> "a"'))
    assert allowed(constraint) == {TOOL}
    constraint.accept(TOOL)
    assert {DATA[id] for id in allowed(constraint)} == {b"1", b"12"}
    text = compiler.compile(Grammar("regex", "<tool>|x"))
    assert {DATA[id] for id in allowed(text)} == {b"<", b"x"}


def test_the_end_is_allowed_only_where_it_is_meant(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(Grammar("regex", "a*"))
    a = DATA.index(b"a")
    assert allowed(constraint) == {END, STOP, a}
    assert allowed(constraint, ending=False) == {a}
    assert allowed(constraint, frozenset({END, STOP})) == {a}
    assert allowed(constraint, frozenset({a}), ending=False) == {a}  # or nothing could follow


def test_no_padding_and_no_nameless_token_may_follow(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(Grammar("regex", r"(?s:.)+"))
    assert max(allowed(constraint)) < len(DATA)
    assert not {END, STOP, TOOL} & allowed(constraint)


@pytest.mark.parametrize("eos", [NOBODY, frozenset({len(BYTES) + 9})])
def test_a_model_without_an_end_ends_where_nothing_can_follow(eos: frozenset[int]) -> None:
    compiler = GrammarCompiler(Vocabulary(BYTES, {}), eos, len(BYTES))
    constraint = compiler.compile(Grammar("regex", "ab?"))
    constraint.accept(ord("a"))
    assert not constraint.complete and allowed(constraint) - {len(BYTES)} == {ord("b")}
    constraint.accept(ord("b"))
    assert constraint.complete


def test_copies_go_ways_of_their_own(compiler: GrammarCompiler) -> None:
    one = compiler.compile(Grammar("regex", "ab|cd"))
    other = one.copy()
    one.accept(DATA.index(b"a"))
    other.accept(DATA.index(b"c"))
    assert (allowed(one), allowed(other)) == ({DATA.index(b"b")}, {DATA.index(b"d")})


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar("json_schema", "{"), "no JSON"),
        (Grammar("json_schema", "[" * 100_000), "no JSON"),
        (Grammar("json_schema", '{"type": "strnig"}'), "strnig"),
        (Grammar("json_schema", '{"type": "integer", "minimum": 5, "maximum": 4}'), "minimum"),
        (Grammar("json_schema", '{"not": {"type": "string"}}'), "not"),
        (Grammar("json_schema", '{"$ref": "http://localhost/x.json"}'), "localhost"),
        (Grammar("json_schema", '{"$ref": "#"}'), "nothing satisfies it"),
        (Grammar("json_schema", "false"), "false"),
        (Grammar("regex", "("), "unclosed group"),
        (Grammar("regex", "a(?=b)"), "look-ahead"),
        (Grammar("regex", r"[^\s\S]"), "nothing satisfies it"),
        (Grammar("regex", ""), "at least one token"),
        (Grammar("lark", "begin: "), "start"),
        (Grammar("lark", "start: <nobody>"), "nobody"),
        (Grammar("lark", "start: a\na[max_tokens=3, temperature=0.5]: /[a-z]+/"), "temperature"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(compiler: GrammarCompiler, grammar: Grammar, words: str) -> None:
    with pytest.raises(GrammarError) as error:
        compiler.compile(grammar)
    said = str(error.value)
    assert re.search(words, said) and len(said) <= 250
    assert "<stop>" not in said and "\n" not in said, "it tells of the tokenizer"


@pytest.mark.parametrize("rule", ['s s s | s s | "a"', "s s | /[a-z]/", 's "a"* s | "a"'])
def test_what_has_ever_more_readings_is_given_up(compiler: GrammarCompiler, rule: str) -> None:
    """Each token costs more than the one before, by far less than any limit on a single step."""
    constraint = compiler.compile(Grammar("lark", f"start: s\ns: {rule}"))
    with pytest.raises(GrammarError, match=r"too much time|[Tt]oo many|max is"):
        for _ in range(3000):
            constraint.accept(DATA.index(b"a"))


def test_an_honest_grammar_is_never_too_slow(compiler: GrammarCompiler) -> None:
    """Arithmetic has many readings too, but few rows of them at a time; and a schema may have many properties."""
    properties = {f"property {n}": {"type": "integer"} for n in range(100)}
    schema = Grammar("json_schema", json.dumps({"type": "object", "properties": properties}))
    assert json.loads(say(compiler.compile(schema), random.Random(5), 20_000)) is not None
    sums = compiler.compile(Grammar("lark", 'start: e\ne: e "+" e | "(" e ")" | /[0-9]+/'))
    for letter in b"(12+3)+" * 150:
        sums.accept(DATA.index(bytes([letter])))


class Clock:
    """Processor time that passes as it is told to, with each reading."""

    def __init__(self) -> None:
        self.now, self.step = 0.0, 0.0

    def thread_time(self) -> float:
        self.now += self.step
        return self.now


def test_an_answer_whose_tokens_keep_being_slow_is_given_up(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(grammar, "time", clock)
    constraint = compiler.compile(Grammar("regex", "a+"))
    a = DATA.index(b"a")
    clock.step = 0.05
    with pytest.raises(GrammarError, match="too much time to follow"):
        for _ in range(50):
            constraint.accept(a)


def test_no_stall_and_no_busy_machine_ends_an_answer(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(grammar, "time", clock)
    constraint = compiler.compile(Grammar("regex", "a+"))
    a = DATA.index(b"a")
    for number in range(2000):
        clock.step = 10.0 if number % 500 == 0 else 0.009
        constraint.accept(a)

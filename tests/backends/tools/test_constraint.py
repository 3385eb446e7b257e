"""The grammars of calls, obeyed by llguidance itself, one token a byte."""

from pathlib import Path
from typing import Any

import llguidance
import pytest

from backends.engine.admission import Limits, refusal
from backends.engine.grammar import Constraint, GrammarCompiler
from backends.prompt import ChatMessage, Prompt, Tool, ToolChoice
from backends.tokenizer import Tokenizer
from backends.tools.constraint import BAN, Unconstrainable, calls_grammar, constrained, strict_grammar
from backends.tools.formats import FORMATS
from backends.wire import MAX_BIASED, Grammar, Sampling, Submit, Vocabulary

HERMES, LLAMA = FORMATS
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER, NOW = Tool("weather", "Of a city", SCHEMA), Tool("now")
STRICT = Tool("weather", "Of a city", SCHEMA, strict=True)
PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "unit": "c"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
IDS = {"<tool_call>": 7, "</tool_call>": 8}
BYTES = llguidance.LLTokenizer("byte")


def obeys(text: str, grammar: Grammar | None) -> bool:
    assert grammar is not None and grammar.kind == "lark"
    matcher = llguidance.LLMatcher(BYTES, grammar.source)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


def for_tools(*tools: Tool, grammar: Grammar | None = None, **choice: Any) -> Sampling:
    prompt = Prompt(messages=(ChatMessage("user", "?"),), tools=tools, tool_choice=ToolChoice(**choice))
    return constrained(Sampling(max_tokens=9, grammar=grammar), prompt, HERMES, IDS.get)


WRONG = [
    "", "Text", f"Text {PARIS}", f"{PARIS}\n", PARIS[:-1], PARIS.replace("city", "town"),
    PARIS.replace('"Paris"', "3"), PARIS.replace('"c"', '"k"'), PARIS.replace('{"city"', '{ "city"'),
    PARIS.replace("weather", "other"), TIME.replace("{}", '{"a": 1}'),
]  # fmt: skip


def test_required_calls_are_nothing_else() -> None:
    grammar = for_tools(WEATHER, NOW, mode="required").grammar
    for text in (PARIS, TIME, f"{PARIS}\n{TIME}", f"{TIME}\n{TIME}\n{PARIS}"):
        assert obeys(text, grammar), text
    for text in WRONG:
        assert not obeys(text, grammar), text


def test_a_named_tool_is_called_once() -> None:
    grammar = for_tools(WEATHER, NOW, mode="required", name="weather").grammar
    assert obeys(PARIS, grammar)
    assert not obeys(TIME, grammar) and not obeys(f"{PARIS}\n{PARIS}", grammar)


def test_without_parallel_calls_there_is_one() -> None:
    grammar = for_tools(WEATHER, NOW, mode="required", parallel=False).grammar
    assert obeys(TIME, grammar) and not obeys(f"{TIME}\n{TIME}", grammar)


def test_a_call_that_may_be_is_not_constrained_but_ends_where_there_may_be_one() -> None:
    assert for_tools(WEATHER, mode="auto") == Sampling(max_tokens=9)
    assert for_tools(WEATHER, mode="auto", parallel=False).stop_token_ids == (8,)


def test_strict_tools_are_constrained_wherever_they_are_called() -> None:
    grammar = for_tools(STRICT, NOW, mode="auto").grammar
    for text in ("", "Text <tool", PARIS, f"Text\n{PARIS}\nmore\n{TIME} bye", "é\n{}"):
        assert obeys(text, grammar), text
    for text in (f"Text {PARIS[:-1]}", PARIS.replace('"Paris"', "3"), "a <tool_call> b"):
        assert not obeys(text, grammar), text
    once = for_tools(STRICT, NOW, mode="auto", parallel=False).grammar
    assert obeys(f"a{PARIS}b", once) and not obeys(PARIS + TIME, once)


def test_tools_that_are_not_allowed_are_not_called() -> None:
    """Though the model is told of them, strict or not."""
    for tool in (WEATHER, STRICT):
        required = for_tools(tool, NOW, mode="required", allowed=("now",)).grammar
        assert obeys(f"{TIME}\n{TIME}", required) and not obeys(PARIS, required)
        auto = for_tools(tool, NOW, mode="auto", allowed=("now",)).grammar
        assert obeys("Text", auto) and obeys(f"Text\n{TIME}", auto) and not obeys(PARIS, auto)
    assert for_tools(WEATHER, NOW, mode="auto", allowed=("now", "weather")).grammar is None
    asked = Grammar("json_schema", '{"type": "integer"}')
    either = for_tools(WEATHER, NOW, mode="auto", allowed=("now",), grammar=asked).grammar
    assert obeys("7", either) and obeys(TIME, either) and not obeys(PARIS, either)


def test_no_call_may_begin_where_none_is_wanted() -> None:
    """The tools stay in the prompt; nothing but the mark is forbidden."""
    assert for_tools(STRICT, mode="none") == Sampling(max_tokens=9, logit_bias={7: BAN})
    asked = Grammar("json_schema", "{}")
    assert for_tools(WEATHER, mode="none", grammar=asked).grammar == asked


def test_the_text_may_have_a_schema_of_its_own() -> None:
    asked = Grammar("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}')
    grammar = for_tools(WEATHER, mode="auto", grammar=asked).grammar
    assert obeys('{"a": 1}', grammar) and obeys(PARIS, grammar)
    assert not obeys("Text", grammar) and not obeys('{"a": "x"}', grammar)
    assert obeys('{\n  "a": 1\n}', grammar) and not obeys('{"a":   1}', grammar)
    assert not obeys('{"a": 1}', for_tools(WEATHER, mode="required", grammar=asked).grammar)
    with pytest.raises(Unconstrainable, match="^tools: "):
        for_tools(WEATHER, mode="auto", grammar=Grammar("regex", "a+"))
    deep = Grammar("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000)
    with pytest.raises(Unconstrainable, match="^tools: "):
        for_tools(WEATHER, mode="auto", grammar=deep)


def test_the_ban_of_calls_fits_beside_as_many_biases_as_a_client_may_give() -> None:
    prompt = Prompt(messages=(), tools=(WEATHER,), tool_choice=ToolChoice("none"))
    given = Sampling(max_tokens=9, logit_bias=dict.fromkeys(range(1000, 1000 + MAX_BIASED), 1.0))
    sampling = constrained(given, prompt, HERMES, IDS.get)
    assert sampling.logit_bias == {**given.logit_bias, 7: BAN}
    assert refusal(Submit(id="g", prompt=[1], sampling=sampling), Limits(4000, 4000)) is None


def test_marks_that_are_no_tokens_cannot_be_forbidden() -> None:
    prompt = Prompt(messages=(), tools=(WEATHER,), tool_choice=ToolChoice("none"))
    assert constrained(Sampling(max_tokens=9), prompt, HERMES, lambda _: None) == Sampling(max_tokens=9)


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({}, '{"a": [1, {"b": null}]}'),
        ({"properties": {}}, "{}"),
        ({"type": "object", "x-guidance": {"item_separator": "; "}}, '{"a": 1, "b": 2}'),
        ({"$defs": {"n": {"type": "integer"}}, "properties": {"n": {"$ref": "#/$defs/n"}}}, '{"n": 3}'),
        ({"properties": {"p": {"type": "string", "format": "path"}}}, '{"p": "/tmp"}'),
        ({"properties": {'q"\\\n%json': {"type": "string"}}}, '{"q\\"\\\\\\n%json": "x"}'),
    ],
)
@pytest.mark.parametrize("make", [calls_grammar, strict_grammar])
def test_any_schema_of_an_object(make: Any, schema: dict[str, Any], arguments: str) -> None:
    grammar = make([Tool("f-1_x", parameters=schema)], HERMES, many=True)
    text = f'<tool_call>\n{{"name": "f-1_x", "arguments": {arguments}}}\n</tool_call>'
    assert obeys(text, grammar) and obeys(f"{text}\n{text}", grammar)


def test_calls_without_marks() -> None:
    call = '{"name": "weather", "parameters": {"city": "Paris"}}'
    required = calls_grammar([WEATHER, NOW], LLAMA, many=True)
    assert obeys(call, required) and obeys('{"name": "now", "parameters": {}}', required)
    assert not obeys(call + call, required) and not obeys("Text", required) and not obeys("", required)
    strict = strict_grammar([STRICT, NOW], LLAMA, many=True)
    assert all(obeys(text, strict) for text in ("", "Text {\n}", " ```\n{}", call))
    assert not any(obeys(text, strict) for text in (call.replace('"Paris"', "3"), "{}", "\n {}"))


@pytest.mark.models
@pytest.mark.parametrize("tools", [(WEATHER, NOW), (STRICT, NOW)])
def test_a_real_model_may_write_calls_in_its_own_tokens(
    qwen_05b_folder: Path, tools: tuple[Tool, ...]
) -> None:
    """One token for a mark, as it was trained, and then the end of the answer."""
    tokenizer, end = Tokenizer(qwen_05b_folder), 151645
    mode: Any = "auto" if tools[0].strict else "required"
    prompt = Prompt(messages=(), tools=tools, tool_choice=ToolChoice(mode))
    grammar = constrained(Sampling(max_tokens=9), prompt, HERMES, tokenizer.id_of).grammar
    assert grammar is not None
    vocabulary = Vocabulary(tokenizer.vocabulary(), tokenizer.names())
    constraint = GrammarCompiler(vocabulary, frozenset({end}), 151936).compile(grammar)
    for id in tokenizer.encode_now(Prompt(text=f"{PARIS}\n{TIME}")):
        assert allows(constraint, id), tokenizer.token(id)
        constraint.accept(id)
    assert allows(constraint, end)


def allows(constraint: Constraint, id: int) -> bool:
    words = constraint.allowed(frozenset(), ending=True)
    return bool(words[id >> 5] >> (id & 31) & 1)

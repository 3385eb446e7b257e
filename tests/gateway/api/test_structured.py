"""What clients ask of an answer's form, in each dialect, and the grammar that comes of it."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.prompt import Prompt
from backends.wire import MAX_GRAMMAR, Grammar
from gateway.api import chat, completions, messages, responses
from gateway.api.structured import MAX_CHOICES, StructuredOutputs
from gateway.config import Tenant
from gateway.errors import ApiError
from gateway.request import Request

SCHEMA = {"type": "object", "properties": {"z": {"type": "null"}, "a": {"const": "ž"}}, "required": ["z"]}
OF_SCHEMA = Grammar("json_schema", json.dumps(SCHEMA, separators=(",", ":"), ensure_ascii=False))
ANY_OBJECT = Grammar("json_schema", '{"type":"object"}')
SAID = [{"role": "user", "content": "Hello?"}]
DIALECTS: dict[str, tuple[Callable[[bytes], Any], dict[str, Any]]] = {
    "chat": (chat.decode, {"messages": SAID}),
    "completions": (completions.decode, {"prompt": "Hello"}),
    "responses": (responses.decode, {"input": "Hello"}),
    "messages": (messages.decode, {"messages": SAID, "max_tokens": 9}),
}


def ask(dialect: str, **fields: Any) -> Request:
    decode, least = DIALECTS[dialect]
    bare = Request(
        id="r", endpoint="chat", tenant=Tenant(name="t"), model="auto", prompt=Prompt(), session=None,
        timeout=1.0, priority=0,
    )  # fmt: skip
    body = decode(json.dumps({"model": "auto", **least, **fields}).encode())
    request: Request = body.sampled(bare)
    return request


def refused(dialect: str, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        ask(dialect, **fields)
    assert error.value.status == 400
    return error.value


def named(schema: Any = SCHEMA, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


@pytest.mark.parametrize("dialect", ["chat", "completions"])
@pytest.mark.parametrize(
    ("format", "grammar"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, ANY_OBJECT),
        (named(), OF_SCHEMA),
        (named(strict=True, description="What it is."), OF_SCHEMA),
        (named(strict=None), OF_SCHEMA),
        (named(None), ANY_OBJECT),
    ],
)
def test_the_response_format(dialect: str, format: Any, grammar: Grammar | None) -> None:
    request = ask(dialect, response_format=format)
    assert (request.grammar, request.grammar_field) == (grammar, "response_format")


@pytest.mark.parametrize(
    ("text", "grammar"),
    [
        (None, None),
        ({}, None),
        ({"format": {"type": "text"}, "verbosity": "medium"}, None),
        ({"format": {"type": "json_object"}}, ANY_OBJECT),
        ({"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}}, OF_SCHEMA),
    ],
)
def test_the_format_of_a_response(text: Any, grammar: Grammar | None) -> None:
    request = ask("responses", text=text)
    assert (request.grammar, request.grammar_field) == (grammar, "text.format")


def test_the_format_of_a_message() -> None:
    request = ask(
        "messages", output_config={"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "high"}
    )
    assert (request.grammar, request.grammar_field) == (OF_SCHEMA, "output_config.format")
    assert ask("messages", output_config={}).grammar is None
    assert messages.decode_count(json.dumps({"model": "m", "messages": SAID, "output_config": {}}).encode())


@pytest.mark.parametrize("dialect", ["chat", "completions"])
@pytest.mark.parametrize(
    ("asked", "grammar"),
    [
        ({"json": SCHEMA}, OF_SCHEMA),
        ({"json": json.dumps(SCHEMA), "regex": None}, OF_SCHEMA),
        ({"json_object": True}, ANY_OBJECT),
        ({"regex": "a|b"}, Grammar("regex", "a|b")),
        ({"choice": ["yes", "n.o"], "disable_any_whitespace": False}, Grammar("regex", r"yes|n\.o")),
        ({"grammar": 'start: "a"'}, Grammar("lark", 'start: "a"')),
    ],
)
def test_structured_outputs(dialect: str, asked: Any, grammar: Grammar) -> None:
    request = ask(dialect, structured_outputs=asked)
    assert (request.grammar, request.grammar_field) == (grammar, "structured_outputs")


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_choices_are_meant_as_they_are_written(choices: list[str]) -> None:
    grammar = StructuredOutputs(choice=choices).to_grammar("structured_outputs")
    assert all(re.fullmatch(grammar.source, choice) for choice in choices)
    assert not re.fullmatch(grammar.source, "".join(choices) + "x")


ENDLESS: dict[str, Any] = {"type": "object", "properties": {"me": {"$ref": "#"}}, "required": ["me"]}
LONG = {"enum": ["x" * MAX_GRAMMAR]}


@pytest.mark.parametrize(
    ("dialect", "fields", "param"),
    [
        ("chat", {"response_format": {"type": "xml"}}, "response_format.type"),
        ("chat", {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ("chat", {"response_format": named(name="a b")}, "response_format.json_schema.name"),
        ("chat", {"response_format": named("{}")}, "response_format.json_schema.schema"),
        ("chat", {"response_format": named(extra=1)}, "response_format.json_schema.extra"),
        ("chat", {"response_format": named(LONG)}, "response_format.json_schema.schema"),
        ("chat", {"response_format": named(ENDLESS)}, "response_format.json_schema.schema"),
        ("chat", {"structured_outputs": {"json": json.dumps(ENDLESS)}}, "structured_outputs.json"),
        ("chat", {"structured_outputs": {}}, "structured_outputs"),
        ("chat", {"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ("chat", {"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ("chat", {"structured_outputs": {"json": "[" * 100_000}}, "structured_outputs.json"),
        ("chat", {"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ("chat", {"structured_outputs": {"choice": [""]}}, "structured_outputs.choice[0]"),
        ("chat", {"structured_outputs": {"choice": ["a"] * (MAX_CHOICES + 1)}}, "structured_outputs.choice"),
        ("chat", {"structured_outputs": {"grammar": "x" * (MAX_GRAMMAR + 1)}}, "structured_outputs.grammar"),
        ("chat", {"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ("chat", {"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ("chat", {"structured_outputs": {"regex": "a"}, "response_format": named()}, "structured_outputs"),
        ("chat", {"guided_json": {}}, "guided_json"),
        ("completions", {"guided_regex": "a"}, "guided_regex"),
        ("responses", {"text": {"verbosity": "low"}}, "text.verbosity"),
        ("responses", {"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ("responses", {"text": {"format": {"type": "json_schema", "name": "a", "schema": LONG}}}, "text.format.schema"),
        ("responses", {"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ("responses", {"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ("messages", {"output_config": {"effort": "low"}}, "output_config.effort"),
        ("messages", {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ("messages", {"output_config": {"format": {"type": "json_schema", "schema": ENDLESS}}},
         "output_config.format.schema"),
        ("messages", {"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(dialect: str, fields: dict[str, Any], param: str) -> None:
    error = refused(dialect, **fields)
    assert error.param == param
    assert error.message.startswith(f"{param}: ")

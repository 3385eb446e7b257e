"""Structured output over the whole of it: real models, engines and clients."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import anthropic
import jsonschema
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

pytestmark = pytest.mark.models

ASK: Any = [{"role": "user", "content": "Tell me about the mill by the river."}]
WORD = {"type": "string", "maxLength": 12}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"name": WORD, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
     "required": ["name", "age"], "additionalProperties": False},
    {"type": "array", "items": {"enum": ["mill", "river", "wheel"]}, "minItems": 1, "maxItems": 4},
    {"type": "object", "properties": {"tags": {"type": "array", "items": WORD, "maxItems": 3},
     "open": {"type": ["boolean", "null"]}}, "required": ["open", "tags"], "additionalProperties": False},
    {"anyOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "number", "maximum": 9}},
     "required": ["kind", "x"], "additionalProperties": False}, {"type": "null"}]},
    {"$defs": {"place": {"type": "object", "properties": {"at": {"enum": ["river", "žleb"]}}, "required": ["at"],
     "additionalProperties": False}}, "type": "array", "items": {"$ref": "#/$defs/place"}, "maxItems": 2},
    {"type": "string", "pattern": "^[A-Z][a-z]{2,8}( [A-Z][a-z]{2,8})?$"},
    {"type": "object", "properties": {"on": {"type": "string", "format": "date"}}, "required": ["on"],
     "additionalProperties": False},
]  # fmt: skip
WHOLE, SCHEMA = "response_format", "response_format.json_schema.schema"
# With the parameter that is named, and what is said of it.
IMPOSSIBLE: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "integer", "minimum": 5, "maximum": 4}, WHOLE, "minimum"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, SCHEMA, "nothing satisfies it"),
    ({"not": {}}, WHOLE, "not"),
    ({"type": "string", "pattern": "a?" * 15_000 + "a" * 15_000}, WHOLE, ""),
]


class Mill(BaseModel):
    name: str = Field(max_length=12)
    wheels: int
    state: Literal["running", "still"]


class Wheel(BaseModel):
    """Without bounds, which Anthropic's client leaves out of the schema that it sends."""

    turning: bool
    state: Literal["new", "old"]


@pytest.fixture(scope="module")
def client(serving: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{serving.url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


def named(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def say(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "7b", "messages": ASK, "max_tokens": 250, **fields})


def test_every_answer_satisfies_its_schema(client: OpenAI) -> None:
    """At temperature 1, side by side with others of other schemas and of none."""

    def ask(case: tuple[int, dict[str, Any]]) -> str:
        seed, schema = case
        choice = say(client, response_format=named(schema), seed=seed, temperature=1.0).choices[0]
        assert choice.finish_reason == "stop", choice
        jsonschema.validate(
            json.loads(choice.message.content), schema, format_checker=jsonschema.FormatChecker()
        )
        return str(choice.message.content)

    cases = [(seed, schema) for seed in range(2) for schema in SCHEMAS]
    with ThreadPoolExecutor(4) as pool:
        free = pool.submit(say, client, max_tokens=60, seed=1)
        together = list(pool.map(ask, cases))
        assert (
            free.result().choices[0].message.content
            == say(client, max_tokens=60, seed=1).choices[0].message.content
        )
    assert [ask(case) for case in cases[: len(SCHEMAS)]] == together[: len(SCHEMAS)]


def test_clients_parse_into_models(client: OpenAI, serving: Any) -> None:
    parsed = client.chat.completions.parse(model="7b", messages=ASK, response_format=Mill, max_tokens=120)
    assert isinstance(parsed.choices[0].message.parsed, Mill)
    with client.chat.completions.stream(
        model="7b", messages=ASK, response_format=Mill, max_tokens=120
    ) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Mill)
    response = client.responses.parse(model="7b", input="The mill?", text_format=Mill, max_output_tokens=120)
    assert isinstance(response.output_parsed, Mill)
    assert response.text is not None and response.text.format is not None
    assert response.text.format.type == "json_schema"
    with anthropic.Anthropic(base_url=serving.url, api_key="any", max_retries=0) as other:
        message = other.messages.parse(model="7b", max_tokens=120, messages=ASK, output_format=Wheel)
    assert isinstance(message.parsed_output, Wheel)


def test_json_objects_expressions_choices_and_grammars(client: OpenAI) -> None:
    any_object = say(client, response_format={"type": "json_object"}, temperature=0, max_tokens=300)
    if any_object.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(any_object.choices[0].message.content), dict)
    else:
        assert any_object.choices[0].message.content.startswith("{")

    def ask(**structured: Any) -> str:
        choice = say(client, temperature=1.0, seed=3, extra_body={"structured_outputs": structured}).choices[
            0
        ]
        assert choice.finish_reason == "stop"
        return str(choice.message.content)

    assert re.fullmatch(r"\d{3}-[a-f]{2}", ask(regex=r"[0-9]{3}-[a-f]{2}"))
    choices = ["a good (mill)", "a bad mill", "žluť 👍"]
    assert ask(choice=choices) in choices
    assert ask(grammar='start: "<" WORD ">"\nWORD: /[a-z]{2,5}/').strip("<>").isalpha()
    text = client.completions.create(
        model="7b",
        prompt="The colour is",
        max_tokens=20,
        extra_body={"structured_outputs": {"choice": [" red", " blue"]}},
    )
    assert text.choices[0].text in (" red", " blue")


def test_several_answers_and_their_logprobs(client: OpenAI) -> None:
    format = named(SCHEMAS[0])
    answer = say(client, response_format=format, n=3, seed=5, temperature=1.0, logprobs=True, top_logprobs=2)
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content), SCHEMAS[0])
        assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
        # They are the model's own: what it had to say was not always what it would have said.
        assert any(token.logprob < -3 for token in choice.logprobs.content)
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_an_answer_may_be_cut_by_its_length(client: OpenAI) -> None:
    cut = say(client, response_format=named({"type": "array", "minItems": 50}), max_tokens=8)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 8)


def test_impossible_schemas_end_their_request_alone(client: OpenAI) -> None:
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(say, client, max_tokens=120, seed=seed) for seed in range(2)]
        for schema, param, words in IMPOSSIBLE:
            for stream in (False, True):
                with pytest.raises(openai.BadRequestError) as error:
                    say(client, response_format=named(schema), stream=stream)
                assert re.search(f"{param}: .*{words}", error.value.message)
                assert error.value.param == param
        assert all(other.result().choices[0].message.content for other in others)
    with pytest.raises(openai.BadRequestError) as error:
        say(client, extra_body={"structured_outputs": {"regex": "("}})
    assert error.value.param == "structured_outputs"
    assert say(client, response_format=named(SCHEMAS[1])).choices[0].finish_reason == "stop"

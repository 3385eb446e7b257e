"""Unmodified clients that ask for models of pydantic: what reaches the dispatcher, and what they make of answers."""

import json
from typing import Any

import jsonschema
import openai
import pytest
from anthropic import Anthropic
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, Field

from backends.backend import Rejected
from backends.wire import Grammar

SAID = '{"name": "Ann", "wheels": 3}'
ASK: Any = [{"role": "user", "content": "Which mill?"}]


class Mill(BaseModel):
    """A mill by a river."""

    name: str
    wheels: int = Field(ge=0)


MILL = Mill(name="Ann", wheels=3)


@pytest.fixture
def client(front: Any) -> Any:
    front.dispatcher.script.texts = (SAID[:5], SAID[5:])
    with OpenAI(base_url=f"{front.url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


def asked(front: Any, field: str) -> Any:
    """The schema that the dispatcher was asked for."""
    request = front.dispatcher.requests[-1]
    assert request.grammar is not None and request.grammar.kind == "json_schema"
    assert request.grammar_field == field
    schema = json.loads(request.grammar.source)
    jsonschema.validate(json.loads(SAID), schema)
    assert list(schema["properties"]) == ["name", "wheels"]
    return schema


def test_a_chat(client: OpenAI, front: Any) -> None:
    parsed = client.chat.completions.parse(model="auto", messages=ASK, response_format=Mill)
    assert parsed.choices[0].message.parsed == MILL
    assert asked(front, "response_format")["additionalProperties"] is False
    with client.chat.completions.stream(model="auto", messages=ASK, response_format=Mill) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == MILL


def test_a_response(client: OpenAI, front: Any) -> None:
    response = client.responses.parse(model="auto", input="Which mill?", text_format=Mill)
    assert response.output_parsed == MILL
    schema = asked(front, "text.format")
    assert response.text is not None and response.text.format is not None
    assert response.text.format.type == "json_schema" and response.text.format.schema_ == schema
    with client.responses.stream(model="auto", input="Which mill?", text_format=Mill) as stream:
        assert stream.get_final_response().output_parsed == MILL


def test_a_message(client: OpenAI, front: Any) -> None:
    with Anthropic(base_url=front.url, api_key="any", max_retries=0) as other:
        message = other.messages.parse(model="auto", max_tokens=50, messages=ASK, output_format=Mill)
    assert message.parsed_output == MILL
    asked(front, "output_config.format")


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_langchain(client: OpenAI, front: Any, method: Any) -> None:
    model = ChatOpenAI(model="auto", base_url=f"{front.url}/v1", api_key="any", max_retries=0)  # type: ignore[arg-type]
    assert model.with_structured_output(Mill, method=method).invoke("Which mill?") == MILL
    if method == "json_schema":
        asked(front, "response_format")
    else:
        assert front.dispatcher.requests[-1].grammar == Grammar("json_schema", '{"type":"object"}')


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_an_engine_refuses(client: OpenAI, front: Any, stream: bool) -> None:
    front.dispatcher.script.refusal = Rejected("structured_outputs: unclosed group", "invalid")
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(
            model="auto", messages=ASK, stream=stream, extra_body={"structured_outputs": {"regex": "("}}
        )
    assert (error.value.param, error.value.code) == ("structured_outputs", "invalid")

"""What the Responses API answers, against the schemas that OpenAI publishes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI


@pytest.fixture
def client(front: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{front.url}/v1", api_key="hr_admin", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def specification() -> dict[str, Any]:
    folder = os.environ.get("HEADRACE_DATA")
    if not folder:
        pytest.skip("HEADRACE_DATA names no folder with openai-openapi-trim.json")
    spec: dict[str, Any] = json.loads((Path(folder) / "openai-openapi-trim.json").read_text())
    return spec


@pytest.mark.parametrize("finish", ["stop", "length", None])
def test_objects_and_events_are_what_openai_specifies(
    client: OpenAI, front: Any, specification: dict[str, Any], finish: Any
) -> None:
    def validate(kind: str, value: object) -> None:
        schema = {"$ref": f"#/components/schemas/{kind}", "components": specification["components"]}
        Draft202012Validator(schema).validate(value)

    front.dispatcher.script.finish = finish
    ask: Any = {
        "model": "auto",
        "input": "Hello?",
        "user": "ann",
        "conversation": client.conversations.create().id,
    }
    for event in client.responses.create(**ask, stream=True):
        validate("ResponseStreamEvent", event.to_dict())
        kept: Any = getattr(event, "response", None)
    for event in client.responses.retrieve(kept.id, stream=True):
        validate("ResponseStreamEvent", event.to_dict())
    if finish is not None:
        validate("Response", client.responses.create(**ask).to_dict())

"""OpenAI's own specification against the front door: what it allows is answered as it says, or refused as it says.

Bodies are made from the specification by schemathesis. Most of what it allows is not done here and is a 400; whatever
comes, nothing may be a 5xx, and no answer may have a shape that it does not know.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode

from gateway.api.chat import ChatBody
from gateway.api.completions import CompletionBody
from gateway.api.responses import ResponsesBody

Specification = dict[str, Any]
EXAMPLES = settings(
    max_examples=25,
    database=None,
    derandomize=True,
    phases=[Phase.generate],  # shrinking such bodies takes minutes, and says little more
    suppress_health_check=list(HealthCheck),
)
PATHS = ("/chat/completions", "/completions", "/responses")
BODIES: dict[str, type[msgspec.Struct]] = {
    "/chat/completions": ChatBody,
    "/completions": CompletionBody,
    "/responses": ResponsesBody,
}
WHOLE = {
    "/chat/completions": "CreateChatCompletionResponse",
    "/completions": "CreateCompletionResponse",
    "/responses": "Response",
}
EVENTS = WHOLE | {
    "/chat/completions": "CreateChatCompletionStreamResponse",
    "/responses": "ResponseStreamEvent",
}


@pytest.fixture(scope="module")
def path() -> Path:
    folder = os.environ.get("HEADRACE_DATA")
    if not folder:
        pytest.skip("HEADRACE_DATA names no folder with openai-openapi-trim.json")
    return Path(folder) / "openai-openapi-trim.json"


@pytest.fixture(scope="module")
def validate(path: Path) -> Callable[[str, object], None]:
    """Raises ValidationError where a value is not of the schema of this name."""
    specification: Specification = _nullable(json.loads(path.read_text()))

    def check(name: str, value: object) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": specification["components"]}
        Draft202012Validator(schema).validate(value)

    return check


def _nullable(schema: Any) -> Any:
    """The specification is of OpenAPI 3.1, but says in words of 3.0 where there may be a null."""
    if isinstance(schema, list):
        return [_nullable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    read = {name: _nullable(value) for name, value in schema.items()}
    return {"anyOf": [read, {"type": "null"}]} if read.get("nullable") is True else read


@pytest.fixture(scope="module")
def client(serve: Any) -> Iterator[httpx.Client]:
    with serve() as front, httpx.Client(base_url=f"{front.url}/v1", timeout=60) as made:
        yield made


def ask(client: httpx.Client, validate: Callable[[str, object], None], path: str, body: object) -> int:
    """The status; whatever it is, what came with it is looked at."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert answer.status_code in (400, 404), answer.text
        validate("ErrorResponse", answer.json())
    elif answer.headers["content-type"] == "application/json":
        validate(WHOLE[path], answer.json())
    else:
        for event in _events(answer.text):
            validate(EVENTS[path], event if path != "/completions" else _filled(event))
    return answer.status_code


def _events(stream: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _filled(chunk: dict[str, Any]) -> dict[str, Any]:
    """The specification has no form of its own for these chunks; OpenAI's have nulls where it knows none."""
    choices = [{**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in chunk["choices"]]
    return {name: value for name, value in chunk.items() if value is not None} | {"choices": choices}


def bodies(path: Path, operation: str, mode: GenerationMode = GenerationMode.POSITIVE) -> Any:
    """A strategy of what the specification allows, or forbids."""
    return schemathesis.openapi.from_path(path)[operation]["POST"].as_strategy(generation_mode=mode)


def serialised(body: Any) -> object:
    """What cannot be said in JSON at all is said as bytes."""
    return (
        body
        if isinstance(body, bytes | dict | list | str | int | float | bool | None)
        else repr(body).encode()
    )


@pytest.mark.parametrize("operation", PATHS)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: str(mode.value))
def test_whatever_comes_is_answered_or_refused(
    client: httpx.Client, validate: Any, path: Path, operation: str, mode: GenerationMode
) -> None:
    @EXAMPLES
    @given(case=bodies(path, operation, mode))
    def each(case: Any) -> None:
        ask(client, validate, operation, serialised(case.body))

    each()


@pytest.mark.parametrize("operation", PATHS)
def test_what_is_done_here_is_answered(
    client: httpx.Client, validate: Any, path: Path, operation: str
) -> None:
    """The same bodies, cut down to the fields that exist here, with something plain to answer."""
    known = {field.name for field in msgspec.structs.fields(BODIES[operation])}
    plain = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "input": "Hi", "model": "auto"}
    statuses: Counter[int] = Counter()

    @EXAMPLES
    @given(case=bodies(path, operation))
    def each(case: Any) -> None:
        given = case.body if isinstance(case.body, dict) else {}
        body = {name: value for name, value in given.items() if name in known}
        body |= {name: value for name, value in plain.items() if name in known}
        statuses[ask(client, validate, operation, body)] += 1

    each()
    assert statuses[200] >= 5, statuses


def test_models(client: httpx.Client, validate: Callable[[str, object], None]) -> None:
    models = client.get("/models").json()
    validate("ListModelsResponse", models)
    for model in models["data"]:
        validate("Model", client.get(f"/models/{model['id']}").json())
    assert client.get("/models/nothing").status_code == 404

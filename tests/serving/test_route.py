"""`/v1/route` on a real socket: what is asked, and what is told."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from openai import OpenAI

from backends.prompt import ChatMessage, Prompt, Tool
from classifier import Assessment


def post(front: Any, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{front.url}/v1/route",
        json.dumps({"model": "auto", **fields}).encode(),
        {"content-type": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["error"]


def test_a_decision(front: Any) -> None:
    front.dispatcher.assessment = Assessment(task="code", good={"7b": 0.9, "70b": 0.95}, seconds=0.001)
    status, told = post(
        front, {"x-session-id": "sess_1"}, messages=[{"role": "user", "content": "Hi"}], max_tokens=5
    )
    assert status == 200
    assert told == {
        "object": "route",
        "tier": "7b",
        "order": ["7b", "70b"],
        "reason": "7b: p=0.90 >= 0.70",
        "task": "code",
        "good": {"7b": 0.9, "70b": 0.95},
        "prompt_tokens": {"7b": 12, "70b": 12},
        "cached_tokens": {"7b": 8, "70b": 0},
        "shadows": {},
        "judged": {"when": "never", "reason": "there is no calibration"},
    }
    request = front.dispatcher.requests[0]
    assert (request.endpoint, request.session, request.max_tokens) == ("chat", "sess_1", 5)
    assert front.dispatcher.running == 0


def test_where_nobody_judged(front: Any) -> None:
    status, told = post(front, prompt="Once upon a time")
    assert (status, told["task"], told["good"]) == (200, None, {})
    assert front.dispatcher.requests[0].endpoint == "completions"
    assert front.dispatcher.requests[0].prompt.text == "Once upon a time"


def test_a_wrong_field_is_named(front: Any) -> None:
    assert post(front, messages=[])[1]["param"] == "messages"
    assert post(front, prompt="x", messages=[])[1]["param"] == "messages"
    assert post(front)[1]["param"] == "messages"
    status, error = post(front, {"x-headrace-timeout-ms": "soon"}, prompt="x")
    assert (status, error["param"]) == (400, "x-headrace-timeout-ms")
    assert front.dispatcher.requests == []


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
MESSAGES = [{"role": "user", "content": "Hi"}]
TOLD = {"name": "weather", "parameters": SCHEMA}


@pytest.mark.parametrize(
    ("endpoint", "headers", "fields"),
    [
        ("chat", {}, {"messages": MESSAGES, "tools": [{"type": "function", "function": TOLD}]}),
        ("responses", {}, {"input": "Hi", "tools": [{"type": "function", **TOLD}]}),
        (
            "messages",
            {"anthropic-version": "2023-06-01"},
            {"messages": MESSAGES, "max_tokens": 9, "tools": [{"name": "weather", "input_schema": SCHEMA}]},
        ),
    ],
)
def test_tools_in_every_dialect(
    front: Any, endpoint: str, headers: dict[str, str], fields: dict[str, Any]
) -> None:
    status, _ = post(front, headers, **fields)
    (request,) = front.dispatcher.requests
    assert (status, request.endpoint) == (200, endpoint)
    assert request.prompt == Prompt(
        messages=(ChatMessage("user", "Hi"),), tools=(Tool("weather", parameters=SCHEMA),)
    )


def test_what_a_response_would_go_on_from_is_decided_on_too(front: Any) -> None:
    with OpenAI(base_url=f"{front.url}/v1", api_key="any", max_retries=0) as client:
        made = client.responses.create(model="auto", input="One?")
    assert post(front, input="Two?", previous_response_id=made.id)[0] == 200
    said = [message.content for message in front.dispatcher.requests[-1].prompt.messages]
    assert said == ["One?", "Hello", "Two?"]
    status, error = post(front, input="Two?", previous_response_id="resp_0")
    assert (status, error["param"]) == (404, "previous_response_id")


def test_one_prompt_is_decided_on_at_a_time(front: Any) -> None:
    status, error = post(front, prompt=["One", "Two"])
    assert (status, error["param"]) == (400, "prompt")

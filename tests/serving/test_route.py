"""`/v1/route` on a real socket: what is asked, and what is told."""

import json
import urllib.error
import urllib.request
from typing import Any

from classifier import Assessment


def post(front: Any, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{front.url}/v1/route",
        json.dumps({"model": "auto", **fields}).encode(),
        {"content-type": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
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

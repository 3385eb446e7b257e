"""`x-headrace-ledger` on the wire: in the body of every dialect, in the last event of a stream, and only when asked."""

import json
from typing import Any

import httpx
import pytest

HELLO = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": HELLO},
    "completions": {"prompt": "Hi"},
    "responses": {"input": "Hi"},
    "messages": {"messages": HELLO, "max_tokens": 9},
}


def ask(front: Any, path: str, **headers: str) -> httpx.Response:
    named = {"x-headrace-ledger": headers["ledger"]} if "ledger" in headers else {}
    stream = headers.get("stream") == "yes"
    body = {"model": "auto", "stream": stream, **BODIES[path]}
    return httpx.post(f"{front.url}/v1/{path}", json=body, headers=named, timeout=10, trust_env=False)


@pytest.mark.parametrize("path", BODIES)
def test_in_a_body(front: Any, path: str) -> None:
    assert ask(front, path, ledger="true").json()["headrace"] == {"ledger": [], "cost": "0", "billed": "0"}
    assert "headrace" not in ask(front, path).json()
    assert "headrace" not in ask(front, path, ledger="false").json()


@pytest.mark.parametrize("path", BODIES)
def test_in_the_last_event_of_a_stream(front: Any, path: str) -> None:
    data = [line.removeprefix("data: ") for line in ask(front, path, stream="yes", ledger="true").text.splitlines()
            if line.startswith("data: {")]  # fmt: skip
    *before, last = map(json.loads, data)
    assert last["headrace"]["ledger"] == []
    assert before and all("headrace" not in event for event in before)
    assert "headrace" not in ask(front, path, stream="yes").text


def test_nonsense_is_refused(front: Any) -> None:
    answer = ask(front, "chat/completions", ledger="please")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-headrace-ledger"

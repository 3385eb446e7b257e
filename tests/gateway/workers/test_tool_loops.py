"""A tool loop keeps its tier, whichever of two workers is asked to go on with it: what is stored tells."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tests.gateway.workers.conftest import Site, StartSite

TIERS = """
  - {{name: 7b, remotes: [{{url: "http://127.0.0.1:{port}/v1", model: stub, kind: vllm}}]}}
  - {{name: 70b, remotes: [{{url: "http://127.0.0.1:{port}/v1", model: stub, kind: vllm}}]}}
"""
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
TRIES = 60  # connections, after which both workers have had some


class Upstream(BaseHTTPRequestHandler):
    """Calls the tool until it is told the result."""

    def do_GET(self) -> None:
        self._send("application/json", b"{}")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        told = any(message["role"] == "tool" for message in asked["messages"])
        delta, finish = ({"content": "Sun."}, "stop") if told else ({"tool_calls": [CALL]}, "tool_calls")
        parts = (
            {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]},
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}},
        )
        same = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "stub"}
        frames = [f"data: {json.dumps(same | part)}\n\n" for part in parts]
        self._send("text/event-stream", "".join([*frames, "data: [DONE]\n\n"]).encode())

    def _send(self, media_type: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def site(start_site: StartSite) -> Iterator[Site]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as upstream:
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        with start_site(tiers=TIERS.format(port=upstream.server_port)) as running:
            yield running
        upstream.shutdown()


def ask(site: Site, **asked: Any) -> httpx.Response:
    """On a connection of its own, so to either worker."""
    headers = {"authorization": f"Bearer {site.key}"}
    found = httpx.post(
        f"{site.url}/v1/responses", json={"tools": [WEATHER], **asked}, headers=headers, timeout=60
    )
    assert found.status_code == 200, found.text
    return found


def worker_of(site: Site, answer: httpx.Response) -> str:
    """The file of whoever served it."""
    id, found = answer.headers["x-request-id"], list[str]()

    def written() -> bool:
        found.extend(file.name for file in (site.folder / "records").glob("*") if id in file.read_text())
        return bool(found)

    site.eventually(written)
    return found[0]


def test_a_tool_loop_keeps_its_tier_over_both_workers(site: Site) -> None:
    """Without what is stored, `auto` would go on with the cheapest tier."""
    called = ask(site, model="70b", input="What is the weather?")
    (call,) = called.json()["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "Sun"}
    workers = {worker_of(site, called)}
    for _ in range(TRIES):
        told = ask(site, model="auto", input=[result], previous_response_id=called.json()["id"])
        assert (told.headers["x-headrace-tier"], told.json()["output"][0]["content"][0]["text"]) == (
            "70b",
            "Sun.",
        )
        assert "keeps its tool loop" in told.headers["x-headrace-reason"]
        workers.add(worker_of(site, told))
        if len(workers) == 2:
            break
    assert len(workers) == 2
    person = ask(site, model="auto", input="Thanks.", previous_response_id=told.json()["id"])
    assert person.headers["x-headrace-tier"] == "7b"

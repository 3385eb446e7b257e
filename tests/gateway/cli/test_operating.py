"""A day in the life of a gateway, from its command line: a key, a budget that is used up, a change, a record."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI, RateLimitError

from gateway.cli import main

CONFIG = """
server: {port: 0, admin: {port: 0}}
state: {folder: state}
telemetry: {records: records}
tiers:
  - {name: 7b, price: {input: 1, output: 2}, remotes: [{url: "http://127.0.0.1:STUB/v1", model: m}]}
"""
LIMITS = "    limits: {requests_per_minute: 100, requests_burst: 50, budget: {per_day: BUDGET}}\n"


class Upstream(BaseHTTPRequestHandler):
    """A server that says "Hello" for 10 tokens of prompt and 20 of answer."""

    def do_GET(self) -> None:
        self._send("application/json", b'{"object": "list", "data": []}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        usage = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ]
        frames = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        self._send("text/event-stream", "".join([*frames, "data: [DONE]\n\n"]).encode())

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def upstream() -> Iterator[int]:
    """Its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def heard(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(pattern, line):
            return match[1]
    raise AssertionError(f"it ended without {pattern}")


def test_a_budget_is_used_up_and_raised_while_it_runs(
    tmp_path: Path, upstream: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text(CONFIG.replace("STUB", str(upstream)) + "anonymous: {name: a}\n")
    assert main(["keys", "new", "--tenant", "acme", "--config", str(file)]) == 0
    said = capsys.readouterr().out
    key = said.split("\n")[0].rpartition(" ")[2]
    lines = file.read_text().replace("anonymous: {name: a}\n", "") + said[said.index("tenants:") :] + LIMITS
    file.write_text(lines.replace("BUDGET", "0.00025"))
    with running("gateway.cli", "serve", "--config", str(file)) as gateway:
        url = heard(gateway, r"ready at (\S+)")
        admin = heard(gateway, r"administration: (\S+)")
        client = OpenAI(base_url=url, api_key=key, max_retries=5)
        ask = {"model": "7b", "max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]}
        # each reserves at most 0.00011 or so and costs 10 + 2 * 20 millionths
        told = [client.chat.completions.with_raw_response.create(**ask) for _ in range(3)]  # type: ignore[call-overload]
        left = [float(answer.headers["x-ratelimit-remaining-budget-day"]) for answer in told]
        assert left[0] - left[1] == pytest.approx(50e-6) == left[1] - left[2]
        with pytest.raises(RateLimitError) as refused:
            client.chat.completions.create(**ask)  # type: ignore[call-overload]
        assert refused.value.code == "insufficient_quota"

        file.write_text(lines.replace("BUDGET", "1"))
        gateway.send_signal(signal.SIGHUP)
        for _ in range(1200):
            if httpx.get(f"{admin}/admin/config").json()["number"] == 2:
                break
            time.sleep(0.05)
        answer = client.chat.completions.with_raw_response.create(**ask)  # type: ignore[call-overload]
        left = [float(answer.headers["x-ratelimit-remaining-budget-day"])]
        assert 1 - 0.0004 < left[0] < 1 - 0.0002  # what was spent before still counts
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(60) == 0
    (records,) = (tmp_path / "records").iterdir()
    outcomes = [json.loads(line) for line in records.read_text().splitlines()]
    # refused once: the SDK has not tried again
    assert [line["code"] for line in outcomes] == [None, None, None, "insufficient_quota", None]
    assert [round(line["cost"] * 1e6) for line in outcomes] == [50, 50, 50, 0, 50]
    assert {line["tenant"] for line in outcomes} == {"acme"}

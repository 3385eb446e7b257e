"""What clients send in confidence stays where it belongs: the whole gateway, before a server that keeps all it hears.

Each canary is put where clients put keys, prompts and what their browsers add, into calls that succeed and calls that
fail; then every place that it could have leaked into is searched.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.tenants import new_key, server_secret

UPSTREAM_KEY = "sk-canary-upstream"
PROMPT, ANSWER, HEADER, NAME, WRONG_KEY = (
    f"canary-{what}" for what in ("prompt", "answer", "header", "name", "wrong-key")
)
CONFIG = """
server: {{port: 0}}
state: {{folder: {folder}/state}}
telemetry: {{log_level: debug, otlp_endpoint: "{hears}"}}
tiers:
  - name: 7b
    remotes: [{{url: "{hears}/v1", model: stub, kind: openai, api_key_env: CANARY_KEY}}]
tenants:
  - name: acme
    keys: [{{prefix: {prefix}, digest: {digest}}}]
    admin: true
"""
SAID = [
    {"choices": [{"index": 0, "delta": {"content": ANSWER}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]


@dataclass
class Heard:
    """What the gateway has sent to its server, and to the collector of its traces and metrics."""

    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    told: list[bytes] = field(default_factory=list)


@pytest.fixture(scope="module")
def heard() -> Iterator[tuple[str, Heard]]:
    heard = Heard()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer("application/json", b"{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path in ("/v1/traces", "/v1/metrics"):
                heard.told.append(body)
                return self.answer("application/x-protobuf", b"")
            heard.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            if b"canary-refused" in body:
                self.send_error(500, PROMPT)
                return
            events = "".join(f"data: {json.dumps(event)}\n\n" for event in SAID) + "data: [DONE]\n\n"
            self.answer("text/event-stream", events.encode())

        def answer(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("set-cookie", f"session={NAME}; Path=/")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
        server.shutdown()


@dataclass
class Leaks:
    """Where the gateway could have let something out, by name."""

    key: str
    answers: str
    errors: str
    places: dict[str, bytes]
    heard: Heard


@pytest.fixture(scope="module")
def leaks(tmp_path_factory: pytest.TempPathFactory, heard: tuple[str, Heard]) -> Leaks:
    url, hears = heard
    folder = tmp_path_factory.mktemp("canaries")
    file, log = folder / "headrace.yaml", folder / "log"
    key = _write_config(file, folder, url)
    with log.open("wb") as errors, subprocess.Popen(
        [sys.executable, "-u", "-m", "gateway.cli", "serve", "--config", str(file)],
        stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | {"CANARY_KEY": UPSTREAM_KEY},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said, port = [], None
        while port is None:
            line = process.stdout.readline()
            assert line, log.read_text()
            said.append(line)
            if match := re.search(r"http://[^ /]+:(\d+)", line):
                port = int(match[1])
        answers, refusals, metrics = _talk(port, key)
        process.terminate()
        said += process.stdout.readlines()
        assert process.wait(60) == 0
    files = (path for path in (folder / "state").rglob("*") if path.is_file())
    places = {
        "log": log.read_bytes(),
        "terminal": "".join(said).encode(),
        "metrics": metrics,
        "collector": b"".join(hears.told),
        "state": b"".join(path.read_bytes() for path in files),
        "errors": refusals.encode(),
    }
    return Leaks(key, answers, refusals, places, hears)


def _write_config(file: Path, folder: Path, url: str) -> str:
    from gateway.config import Config, Remote, State, Tier

    tier = Tier(name="7b", remotes=(Remote(url=f"{url}/v1", model="stub"),))
    secret = server_secret(Config(tiers=(tier,), state=State(folder=str(folder / "state"))))
    key, kept = new_key(secret)
    file.write_text(CONFIG.format(folder=folder, hears=url, prefix=kept.prefix, digest=kept.digest))
    return key


def _talk(port: int, key: str) -> tuple[str, str, bytes]:
    """Bodies of what succeeded, of what failed, and the metrics."""
    headers = {
        "authorization": f"Bearer {key}",
        "cookie": f"session={HEADER}",
        "baggage": f"user={HEADER}",
        "tracestate": f"vendor={HEADER}",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "x-forwarded-for": HEADER,
        "x-headrace-anything": HEADER,
        "user-agent": HEADER,
        "referer": HEADER,
    }
    chat: dict[str, Any] = {
        "model": "7b",
        "messages": [{"role": "user", "content": PROMPT, "name": NAME}],
        "user": NAME,
        "metadata": {"a": NAME},
        "stop": [f"{PROMPT}-stop"],
    }
    fine: list[str] = []
    failed: list[str] = []
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:

        def post(path: str, body: Any, **options: Any) -> None:
            answer = client.post(path, json=body, **options)
            (fine if answer.status_code == 200 else failed).append(answer.text)

        post("/v1/chat/completions", chat)
        post("/v1/chat/completions", chat | {"stream": True})
        post("/v1/completions", {"model": "7b", "prompt": [PROMPT, PROMPT]})
        post("/v1/responses", {"model": "7b", "input": PROMPT, "store": False})
        post(
            "/v1/messages",
            {"model": "7b", "max_tokens": 5, "messages": [{"role": "user", "content": PROMPT}]},
        )
        post("/v1/route", chat)
        post(
            f"/v1/chat/completions?key={HEADER}",
            chat | {"messages": [{"role": "user", "content": "canary-refused"}]},
        )
        post("/v1/chat/completions", chat | {"temperature": PROMPT})
        post("/v1/chat/completions", chat | {"max_tokens": 10**9})
        post("/v1/chat/completions", chat, headers={"authorization": f"Bearer {WRONG_KEY}"})
        post("/v1/chat/completions", chat, headers={"x-session-id": HEADER})
        post(f"/v1/{HEADER}", chat)
        failed.append(client.get(f"/v1/responses/{HEADER}").text)
        failed.append(client.get(f"/v1/conversations/{HEADER}/items/{HEADER}").text)
        metrics = client.get("/metrics").content
    return "\n".join(fine), "\n".join(failed), metrics


def test_the_calls_were_what_they_were_meant_to_be(leaks: Leaks) -> None:
    assert leaks.answers.count(ANSWER) == 6 and leaks.errors.count('"error"') == 8
    assert all(leaks.places.values()), [name for name, content in leaks.places.items() if not content]


def test_no_key_is_written_anywhere(leaks: Leaks) -> None:
    """Nor is one that was wrong: it may be right elsewhere."""
    for name, content in leaks.places.items():
        for key in (leaks.key, UPSTREAM_KEY, WRONG_KEY):
            assert key.encode() not in content, name


@pytest.mark.parametrize("place", ["log", "terminal", "metrics", "collector", "state"])
def test_no_words_of_clients_or_models_are(leaks: Leaks, place: str) -> None:
    assert re.findall(rb"canary-[a-z-]+", leaks.places[place]) == []


def test_errors_repeat_nothing_of_a_prompt(leaks: Leaks) -> None:
    for secret in (PROMPT, NAME, ANSWER, "canary-refused"):
        assert secret not in leaks.errors


def test_the_server_hears_the_prompt_and_nothing_else_of_the_client(leaks: Leaks) -> None:
    assert len(leaks.heard.requests) >= 6
    for path, headers, body in leaks.heard.requests:
        assert path in ("/v1/chat/completions", "/v1/completions")
        assert headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
        assert (
            not {"cookie", "baggage", "tracestate", "x-forwarded-for", "x-api-key", "referer"}
            & headers.keys()
        )
        assert HEADER not in "".join(headers.values())
        for secret in (leaks.key, HEADER, WRONG_KEY):
            assert secret.encode() not in body

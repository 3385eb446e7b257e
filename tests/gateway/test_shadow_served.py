"""A gateway put together with shadow sampling: one call through all of it, and what is learnt from that afterwards."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.config import Config, Policy, Remote, ShadowSampling, State, Tenant, Tier
from gateway.drain import Drain
from gateway.learning.recordings import load

WORDS = '{"good": true}'


class Upstream(BaseHTTPRequestHandler):
    """Finds everything good."""

    asked: list[dict[str, Any]] = []

    def do_GET(self) -> None:
        self._send("application/json", b'{"object": "list", "data": []}')

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        scores = {"content": [{"token": WORDS, "logprob": -0.25, "bytes": None, "top_logprobs": []}]}
        chunks: list[dict[str, Any]] = [
            {
                "choices": [
                    {"index": 0, "delta": {"content": WORDS}, "finish_reason": None, "logprobs": scores}
                ]
            },
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}},
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
def url() -> Iterator[str]:
    Upstream.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tgi", "lmdeploy", "openai"])
async def test_a_call_is_learnt_from(url: str, tmp_path: Path, kind: Any) -> None:
    tiers = tuple(
        Tier(name=name, remotes=(Remote(url=url, model=name, kind=kind),)) for name in ("7b", "70b")
    )
    file = tmp_path / "traffic.jsonl"
    config = Config(
        tiers=tiers,
        anonymous=Tenant(name="anonymous", policy=Policy(floor=0.0)),
        state=State(folder=str(tmp_path)),
        shadow_sampling=ShadowSampling(share=1.0, recordings=str(file)),
    )
    app = create_app(config, Drain())
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        asked = {"model": "auto", "messages": [{"role": "user", "content": "Is a whale a mammal?"}]}
        answer = await client.post("/v1/chat/completions", json=asked)
        assert answer.status_code == 200 and answer.headers["x-headrace-tier"] == "7b"
        async with asyncio.timeout(20):
            while not file.exists():
                await asyncio.sleep(0.05)
        metrics = (await client.get("/metrics")).text
    [found] = load(file)
    assert (found.tier, found.model, found.good, found.set) == ("7b", "remote:7b", True, "traffic")
    assert found.logprobs == (-0.25,) and found.prompt_tokens == 10
    assert [each["model"] for each in Upstream.asked] == ["7b", "7b", "70b", "70b"]
    assert "whale" not in file.read_text()
    # the tenant was served once
    assert 'headrace_tokens_total{kind="prompt",tenant="anonymous",tier="7b"} 10.0' in metrics
    assert 'headrace_shadow_tokens_total{kind="prompt",tier="70b"} 20.0' in metrics

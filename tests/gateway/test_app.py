"""The gateway put together: what it needs, what it leaves behind, and a call through all of it."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.config import Config, Engine, Remote, Server, State, Telemetry, Tenant, Tier
from gateway.drain import Drain

HEAVY = ("torch", "triton", "numba", "transformers", "gguf", "sklearn", "scipy")


def config(folder: Path, **changes: Any) -> Config:
    """One tier whose server nobody runs."""
    fields: dict[str, Any] = {
        "tiers": (Tier(name="7b", remotes=(Remote(url="http://127.0.0.1:9/v1", model="m"),)),),
        "anonymous": Tenant(name="anonymous"),
        "state": State(folder=str(folder)),
    }
    return Config(**{**fields, **changes})


def test_the_serving_plane_has_no_torch(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from gateway import cli, server
from gateway.app import create_app
from gateway.configfile import parse_config
from gateway.drain import Drain
text = "tiers: [{name: 7b, remotes: [{url: 'http://127.0.0.1:9/v1', model: m}]}]"
app = create_app(parse_config(text + "\\nstate: {folder: " + sys.argv[1] + "}", "x"), Drain())
async def run():
    async with app.router.lifespan_context(app):
        pass
asyncio.run(run())
print(" ".join(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "gateway.fleet" in loaded
    assert not loaded & set(HEAVY)


async def test_a_call_through_all_of_it(tmp_path: Path) -> None:
    """The tier's server is down: a refusal that every part on the way has had its say in."""
    app = create_app(config(tmp_path, telemetry=Telemetry(otlp_endpoint="http://127.0.0.1:9")), Drain())
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        asked = {"model": "7b", "messages": [{"role": "user", "content": "x"}]}
        refused = await client.post("/v1/chat/completions", json=asked)
        assert refused.status_code in (502, 503)
        assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
        unknown = await client.post("/v1/chat/completions", json={**asked, "model": "gpt"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        models = await client.get("/v1/models")
        assert [model["id"] for model in models.json()["data"]] == ["auto", "7b"]
        metrics = (await client.get("/metrics")).text
        assert 'headrace_requests_total{endpoint="chat",error_code="model_not_found"' in metrics
        assert "headrace_draining 0.0" in metrics


async def test_draining_is_in_the_metrics(tmp_path: Path) -> None:
    drain = Drain()
    app = create_app(config(tmp_path), drain)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        await drain.leave(0.0)
        assert "headrace_draining 1.0" in (await client.get("/metrics")).text


def test_a_model_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tiers = (Tier(name="7b", engines=(Engine(model="smollm3"),)),)
    with pytest.raises(ValueError, match="smollm3"):
        create_app(config(tmp_path / "state", tiers=tiers), Drain())
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


async def test_keys_are_asked_for_where_nobody_is_anonymous(tmp_path: Path) -> None:
    app = create_app(config(tmp_path, anonymous=None, server=Server(host="0.0.0.0")), Drain())
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        for path in ("/v1/models", "/metrics", "/nowhere"):
            assert (await client.get(path)).status_code == 401
        assert (await client.get("/livez")).status_code == 200
        assert json.loads((await client.get("/readyz")).content)["draining"] is False

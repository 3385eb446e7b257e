"""What the stages of a request say of it in its trace."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gateway.app import create_app
from gateway.config import Config, Policy, Remote, State, Telemetry, Tenant, Tier
from gateway.drain import Drain

ASK = {"model": "auto", "max_tokens": 5, "messages": [{"role": "user", "content": "the canary sings"}]}


@pytest.fixture
async def spans(collector: Any, tmp_path: Path) -> AsyncIterator[dict[str, Span]]:
    """Of a request to servers that answer nonsense."""
    remotes = (Remote(url=f"{collector.url}/v1", model="m"),)
    config = Config(
        tiers=(Tier(name="7b", remotes=remotes), Tier(name="70b", remotes=remotes)),
        anonymous=Tenant(name="anonymous", policy=Policy(floor=0.0)),
        shadow_policies={"strict": Policy(floor=1.0)},
        state=State(folder=str(tmp_path)),
        telemetry=Telemetry(otlp_endpoint=collector.url),
    )
    app = create_app(config, Drain())
    transport: Any = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.post("/v1/chat/completions", json=ASK)).status_code == 502
    yield collector.spans()


def attributes(span: Span) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes}


def test_every_stage_is_there_within_the_request(spans: dict[str, Span]) -> None:
    names = ("auth", "recall", "encode", "prefix", "reserve", "classify", "route", "settle")
    root = spans.pop("POST /v1/chat/completions")
    assert set(spans) == {*(f"headrace.{name}" for name in names), "chat 7b", "chat 70b"}
    for span in spans.values():
        assert span.parent_span_id == root.span_id
        assert root.start_time_unix_nano <= span.start_time_unix_nano
        assert span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano


def test_what_they_say(spans: dict[str, Span]) -> None:
    assert attributes(spans["headrace.auth"]) == {"headrace.tenant": "anonymous"}
    assert attributes(spans["headrace.reserve"])["headrace.tokens"] > 5
    route = attributes(spans["headrace.route"])
    assert route["headrace.route.order"].values[0].string_value == route["headrace.route.tier"] == "7b"
    assert route["headrace.route.reason"].startswith(f"7b: p={route['headrace.route.good.7b']:.2f}")
    assert route["headrace.route.load.7b"] == route["headrace.route.load.70b"] == 0.0
    assert route["headrace.route.shadow.strict"] in ("7b", "70b")
    for attempt in ("chat 7b", "chat 70b"):
        said = attributes(spans[attempt])
        assert said["headrace.outcome"] == said["error.type"] == "upstream_protocol"

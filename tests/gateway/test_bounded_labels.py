"""Whatever strangers send, they add no series of their own to the metrics."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import create_app
from gateway.config import Config, Remote, State, Tenant, Tier
from gateway.drain import Drain

MARK = "zqx"  # in all that they send, and in nothing of ours
MOST = 60  # series of ours that their mistakes may bring: an endpoint, a status, a code
words = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20).map(lambda word: MARK + word)
paths = st.sampled_from(
    ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/route"]
)


@dataclass
class Door:
    client: httpx.AsyncClient
    first: int

    async def series(self) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        page = (await self.client.get("/metrics")).text
        return {
            (sample.name, frozenset(sample.labels.items()))
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if not sample.name.endswith(("_bucket", "_sum"))  # they come with a count
        }


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    remote = Remote(url="http://127.0.0.1:9/v1", model="m")
    config = Config(
        tiers=(Tier(name="7b", remotes=(remote,)),),
        anonymous=Tenant(name="anonymous"),
        state=State(folder=str(tmp_path)),
    )
    transport: Any = httpx.ASGITransport(create_app(config, Drain()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        made = Door(client, 0)
        made.first = len(await made.series())
        yield made


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words, words, words, paths, st.sampled_from(["GET", "POST", "DELETE", "BREW"]), st.booleans())
async def test_they_add_none_of_their_own(
    door: Door, model: str, name: str, tail: str, path: str, method: str, known: bool
) -> None:
    headers = {
        "authorization": f"Bearer {name}", "x-request-id": name, "x-session-id": name, "user-agent": name,
        "x-headrace-trace": name if name.endswith("1") else "steps", "host": "localhost",
    }  # fmt: skip
    body = {
        "model": "7b" if known else model, "messages": [{"role": "user", "content": tail, "name": name}],
        "prompt": tail, "input": tail, "user": name, "metadata": {name: model}, "max_tokens": 5,
    }  # fmt: skip
    where = path if known else f"{path}/{quote(tail, safe='/')}"
    await door.client.request(method, where, json=body, headers=headers)
    for kept in ("messages", "prompt", "input"):
        one = {"model": body["model"], kept: body[kept], "max_tokens": 5}
        await door.client.post(path, json=one, headers=headers | {"x-session-id": ""})
    series = await door.series()
    assert not [labels for _, labels in series if any(MARK in value for _, value in labels)]
    assert len(series) <= door.first + MOST

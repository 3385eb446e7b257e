"""A long prompt is tokenised beside the event loop, not on it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.app import create_app
from gateway.config import Config, Remote, State, Tenant, Tier
from gateway.drain import Drain

MOST = 0.05  # seconds that nobody else may be kept waiting
WORDS = "the quick brown fox jumps over the lazy dog, and runs away from 1234 foxes; "


class Pulse:
    """Beats on the event loop: how long it was kept from the next beat, by the clock and by the loop's own CPU time."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.worked: list[float] = []

    async def beat(self) -> None:
        while True:
            wall, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(0.001)
            self.gaps.append(time.monotonic() - wall)
            self.worked.append(time.thread_time() - cpu)


@pytest.mark.models
async def test_a_prompt_of_a_megabyte_holds_nobody_up(smollm2_folder: Path, tmp_path: Path) -> None:
    """By the loop's CPU time, which other programs of a busy machine do not add to. By the clock, too, but only that
    the loop runs on while the prompt is tokenised: a tokeniser that keeps the interpreter's lock stops it."""
    remote = Remote(url="http://127.0.0.1:9/v1", model="m", tokenizer=str(smollm2_folder))
    config = Config(
        tiers=(Tier(name="7b", remotes=(remote,)),),
        anonymous=Tenant(name="anonymous"),
        state=State(folder=str(tmp_path)),
    )
    message = {"role": "user", "content": WORDS * (1_000_000 // len(WORDS))}
    body = msgspec.json.encode({"model": "auto", "messages": [message]})
    app = create_app(config, Drain())
    transport: Any = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            shares = [await longest_gap(client, body) for _ in range(3)]
    assert min(shares) < 0.5


async def longest_gap(client: httpx.AsyncClient, body: bytes) -> float:
    """As a share of the time that the prompt took. A machine that stalls makes one long, but not each time."""
    pulse = Pulse()
    beating = asyncio.create_task(pulse.beat())
    await asyncio.sleep(0.01)
    started = time.monotonic()
    headers = {"content-type": "application/json"}
    answer = await client.post("/v1/chat/completions", content=body, headers=headers, timeout=120)
    took = time.monotonic() - started
    beating.cancel()
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert max(pulse.worked) < MOST
    return max(0.0, max(pulse.gaps) - MOST) / took

"""Many mixed requests, a third of which are given up at random moments: nothing stays behind, nothing changes.

Memory is the resident set of the gateway and of each engine, as the kernel has it: after a quarter of the requests,
when every buffer has been used once, and after all of them, both times with nothing running.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.models

CLIENTS = 16  # at once
COMPARED = 50  # answers at most, with those of quiet engines
PLACES = ("the mill", "a harbour at night", "the old library", "Prague", "a mountain hut", "the moon")
ORDERS = (
    "Write a story about {}.",
    "List three facts about {}.",
    "Who lives in {}?",
    "Translate into Czech: I like {}.",
)


@dataclass(frozen=True)
class Work:
    """A request and, for a client that does not wait for its answer, the seconds that it stays."""

    body: dict[str, Any]
    stays: float | None

    @property
    def tried(self) -> bool:
        """Whether its answer is compared with that of a quiet engine."""
        return self.stays is None and self.body["seed"] % 10 == 0


def mixed(count: int) -> list[Work]:
    """Always the same: prompts of about 40 to 220 tokens, answers of up to 16, greedy or not, streamed or not."""
    draw = random.Random(20)
    return [
        Work(
            body={
                "model": draw.choice(["7b", "7b", "7b", "70b"]),
                "messages": [{"role": "user", "content": f"{prompt(draw)} Question {number}."}],
                "max_tokens": draw.randint(1, 16),
                "temperature": draw.choice([0, 0.7, 1.0]),
                "top_p": draw.choice([0.9, 1.0]),
                "seed": number,
                "stream": draw.random() < 0.5,
            },
            stays=draw.uniform(0, 1.5) if draw.random() < 1 / 3 else None,
        )
        for number in range(count)
    ]


def prompt(draw: random.Random) -> str:
    place = draw.choice(PLACES)
    context = f"Think of {place}. " * draw.choice([0, 0, 1, 5, 25])
    return context + draw.choice(ORDERS).format(place)


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """The text. An answer that is not complete fails the test."""
    if not body["stream"]:
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        events = [
            line.removeprefix("data: ") async for line in answer.aiter_lines() if line.startswith("data")
        ]
    assert events.pop() == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    assert choices[-1]["finish_reason"] in ("stop", "length")
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def run(client: httpx.AsyncClient, works: list[Work]) -> dict[int, str]:
    """All of them, `CLIENTS` at once. The answers that are tried, by seed."""
    waiting = iter(works)
    answers: dict[int, str] = {}

    async def work_off() -> None:
        for work in waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(work.stays):
                    text = await ask(client, work.body)
                    if work.tried:
                        answers[work.body["seed"]] = text

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(work_off())
    return answers


@pytest.fixture
async def client(serving: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=serving.url, timeout=120) as made:
        yield made


def rest(serving: Any) -> list[int]:
    """Wait until nothing runs and every block is back; then bytes of the gateway and of its engines."""
    busy = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    serving.eventually(lambda: bool(not any(serving.metric(name) for name in busy)))
    return [resident(pid) for pid in (serving.process.pid, serving.engine(0), serving.engine(1))]


def resident(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


@pytest.mark.parametrize(
    ("count", "growth"),
    [
        (80, 1.3),  # so few have not yet touched every page of the KV cache
        pytest.param(2000, 1.1, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
async def test_nothing_stays_behind(
    client: httpx.AsyncClient, serving: Any, count: int, growth: float
) -> None:
    works = mixed(count)
    answers = await run(client, works[: count // 4])
    before = await asyncio.to_thread(rest, serving)
    answers |= await run(client, works[count // 4 :])
    after = await asyncio.to_thread(rest, serving)
    print("MiB after a quarter and after all:", [n >> 20 for n in before], [n >> 20 for n in after])
    assert [one * growth >= other for one, other in zip(before, after, strict=True)] == [True] * 3
    assert serving.metric("headrace_engine_restarts_total") == 0
    assert serving.metric("headrace_stream_aborts_total", reason="client") > 0
    tried = [work.body for work in works if work.tried][:COMPARED]
    quiet = {body["seed"]: await ask(client, body) for body in tried}
    assert quiet == {body["seed"]: answers[body["seed"]] for body in tried}

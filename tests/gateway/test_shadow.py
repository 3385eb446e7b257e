"""Learning from live traffic: what is taken, what it comes to, and that nobody who waits can feel it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from backends.backend import Delta, Generation, Signal, Unavailable, Usage
from backends.prompt import ChatMessage, Prompt, Tool
from backends.wire import Grammar
from classifier import Assessment
from gateway import shadow
from gateway.config import Price, ShadowSampling, Tenant
from gateway.judges import Weights
from gateway.learning.recordings import load
from gateway.metrics import Metrics
from gateway.request import Request, Route
from gateway.shadow import ShadowSampler
from gateway.tiers import Replica, Tier

QA = Assessment(task="qa", good={"small": 0.4}, seconds=0.0)
ROUTE = Route(order=("small", "large"), reason="", assessment=QA)
PROMPT = Prompt(messages=(ChatMessage(role="user", content="What is the secret?"),))


@dataclass
class Model:
    """Says `words`, or `verdict` where a grammar leaves no other choice. `busy`: what it runs for others."""

    name: str
    words: str = "hello"
    verdict: str = '{"good": true}'
    busy: int = 0
    available: bool = True
    tokenizer: None = None
    context_length: int = 40
    failing: bool = False
    slow: asyncio.Event | None = None
    seen: list[Generation] = field(default_factory=list)
    running: int = 0

    @property
    def in_flight(self) -> int:
        return self.busy + self.running

    async def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        self.seen.append(generation)
        self.running += 1
        try:
            if self.failing:
                raise Unavailable("gone")
            if self.slow is not None:
                await self.slow.wait()
            text = self.words if generation.sampling.grammar is None else self.verdict
            signals = (Signal(-0.5, 1.0, 0.25),) * 2 if generation.sampling.signals else ()
            usage = Usage(prompt_tokens=10, completion_tokens=2)
            yield Delta(text=text, signals=signals, finish="stop", usage=usage)
        finally:
            self.running -= 1


class Rig:
    def __init__(self, folder: Path, draw: float = 0.0, **settings: Any) -> None:
        self.file = folder / "shadow" / "r.jsonl"
        self.small, self.large = Model("small/0"), Model("large/0", words="good day")
        self.metrics = Metrics(["small", "large"], {}, [])
        self.now = 0.0
        tiers = [
            Tier(each.name[:-2], (Replica(each, "m", room=4),), Price(input=1, output=1))  # type: ignore[arg-type]
            for each in (self.small, self.large)
        ]
        self.sampler = ShadowSampler(
            ShadowSampling(share=0.5, recordings=str(self.file), **settings), tiers,
            {f"{name}/0": Weights(f"model of {name}", "float32") for name in ("small", "large")},
            b"secret", self.metrics, default_max_tokens=50, draw=lambda: draw, clock=lambda: self.now,
        )  # fmt: skip

    def offer(self, prompt: Prompt = PROMPT, route: Route = ROUTE, id: str = "1", **fields: Any) -> None:
        tenant = Tenant(name="acme", tiers=fields.pop("tiers", None))
        plain: dict[str, Any] = {
            "id": id, "endpoint": "chat", "tenant": tenant, "model": "auto", "prompt": prompt, "session": None,
            "timeout": 9.0, "priority": 0,
        }  # fmt: skip
        self.sampler.offer(Request(**{**plain, **fields}), prompt, route)

    def count(self, outcome: str) -> float:
        line = f'headrace_shadow_samples_total{{outcome="{outcome}"}} '
        return self._value(line)

    def _value(self, line: str) -> float:
        shown = self.metrics.render().decode().splitlines()
        return float(next(each for each in shown if each.startswith(line)).rpartition(" ")[2])

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.sampler.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, outcome: str, count: int = 1) -> None:
        async with self.running(), asyncio.timeout(10):
            while self.count(outcome) < count:
                await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "LOOK_AGAIN", 0.01)


@pytest.mark.parametrize(
    ("verdict", "good"), [('{"good": true}', True), ('{"good": false}', False), ("{", False)]
)
async def test_an_answer_is_graded_against_the_dearest_tiers(
    tmp_path: Path, verdict: str, good: bool
) -> None:
    rig = Rig(tmp_path)
    rig.large.verdict = verdict
    rig.offer(temperature=0.3, seed=7)
    await rig.until("recorded")
    [found] = load(rig.file)
    assert (found.tier, found.model, found.weights, found.set) == (
        "small",
        "model of small",
        "float32",
        "traffic",
    )
    assert (found.good, found.task, found.expected, found.tokens) == (good, "qa", 0.4, 2)
    assert found.logprobs == (-0.5, -0.5) and found.entropies == (0.25, 0.25)
    assert "secret" not in rig.file.read_text() and "hello" not in rig.file.read_text()
    assert rig.file.stat().st_mode & 0o777 == 0o600


async def test_it_comes_after_all_that_anybody_waits_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.offer(temperature=0.3, seed=7)
    await rig.until("recorded")
    again, answer, question = rig.small.seen[0], *rig.large.seen
    assert all(
        each.traffic == "batch" and each.priority == 1000 and each.salt for each in (again, answer, question)
    )
    assert (again.sampling.temperature, again.sampling.seed, again.sampling.signals) == (0.3, 7, True)
    assert answer.prompt == PROMPT and not answer.sampling.signals
    assert 1 <= again.sampling.max_tokens < 40 and question.sampling.max_tokens == 1  # what there is room for
    asked = question.prompt.messages[0].content
    assert "What is the secret?" in asked and "hello" in asked and "good day" in asked


async def test_what_it_used_is_told(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.offer()
    await rig.until("recorded")
    shown = rig.metrics.render().decode()
    assert 'headrace_shadow_tokens_total{kind="prompt",tier="large"} 20.0' in shown
    assert 'headrace_shadow_tokens_total{kind="completion",tier="small"} 2.0' in shown
    cost = next(
        line for line in shown.splitlines() if line.startswith('headrace_shadow_cost_total{tier="small"}')
    )
    assert float(cost.split()[-1]) == pytest.approx(12e-6)


@pytest.mark.parametrize(
    "fields",
    [
        {"route": Route(order=("large",), reason="", assessment=QA)},  # nobody is dearer
        {"route": Route(order=("small", "large"), reason="", assessment=None)},  # the client named the tier
        {"tiers": ("small",)},  # the tenant may not use the dearer one
        {"n": 2},
        {"grammar": Grammar(kind="regex", source="a")},
        {"prompt": Prompt(text="Once")},
        {"prompt": Prompt(messages=PROMPT.messages, tools=(Tool(name="f"),))},
    ],
)
async def test_what_cannot_be_compared_is_not_taken(tmp_path: Path, fields: dict[str, Any]) -> None:
    rig = Rig(tmp_path, max_waiting=1)
    rig.offer(**fields)
    rig.offer()  # there is room for it
    assert rig.count("queue") == 0


async def test_a_share_of_all(tmp_path: Path) -> None:
    rig = Rig(tmp_path, draw=0.5, max_waiting=1)
    for _ in range(3):
        rig.offer()
    assert rig.count("queue") == 0  # none was taken


async def test_bounds(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_waiting=2, per_hour=3)
    for _ in range(3):
        rig.offer()
    assert (rig.count("queue"), rig.count("rate")) == (1, 0)
    await rig.until("recorded", 2)
    rig.offer()
    rig.offer()
    assert rig.count("rate") == 1
    rig.now = 3601.0
    rig.offer()
    assert rig.count("rate") == 1


async def test_nothing_runs_while_a_tier_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "PATIENCE", 0.1)
    rig = Rig(tmp_path)
    rig.large.busy = 2
    rig.offer()
    await rig.until("load")
    assert not rig.small.seen and not rig.file.exists()
    rig.large.busy = 1
    rig.offer()
    await rig.until("recorded")


async def test_it_ends_where_a_tier_gets_busy(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.large.slow = asyncio.Event()
    rig.offer()
    async with rig.running(), asyncio.timeout(10):
        while not rig.large.seen:
            await asyncio.sleep(0.01)
        assert rig.count("load") == 0  # its own work is no load
        rig.small.busy = 3
        while not rig.count("load"):
            await asyncio.sleep(0.01)
        assert rig.large.running == 0
    assert not rig.file.exists()


async def test_a_failure_concerns_nobody(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.small.failing = True
    rig.offer()
    await rig.until("failed")
    rig.small.failing = False
    rig.offer()
    await rig.until("recorded")


async def test_a_prompt_asked_twice_counts_twice(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.offer(id="1")
    rig.offer(id="2")
    await rig.until("recorded", 2)
    assert len({json.loads(line)["sample"] for line in rig.file.read_text().splitlines()}) == 2


async def test_its_end_leaves_nothing_running(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.small.slow = asyncio.Event()
    rig.offer()
    async with rig.running(), asyncio.timeout(10):
        while not rig.small.seen:
            await asyncio.sleep(0.01)
    assert rig.small.running == 0

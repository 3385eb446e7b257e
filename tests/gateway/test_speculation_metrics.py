"""What is told of drafts: counted by position, and whether they pay."""

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from backends.wire import GateState, Load, Speculation
from gateway.speculation_metrics import TASKS, SpeculationMetrics

LABELS = {"model_name": "small", "engine": "7b/0"}


class Page:
    def __init__(self, **speculation: Any) -> None:
        self.registry = CollectorRegistry()
        self.metrics = SpeculationMetrics(self.registry, {"7b/0": "small"})
        self.metrics.describe("7b/0", Speculation(**speculation))

    def accepted(self, position: int) -> float | None:
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        return self.registry.get_sample_value(name, LABELS | {"position": str(position)})

    def gate(self, name: str, task: str, **labels: str) -> float | None:
        labels |= {"method": "ngram", "task": task}
        return self.registry.get_sample_value(f"headrace_speculation_{name}", LABELS | labels)


@pytest.fixture
def page() -> Page:
    return Page(method="ngram", max_tokens=3)


def load(*gates: GateState, **counts: Any) -> Load:
    fields: dict[str, Any] = {field.name: 0 for field in msgspec.structs.fields(Load) if field.required}
    return Load(**fields | {"engine": "7b/0", "incarnation": "a", "finished": {}, "gates": gates} | counts)


def test_every_series_is_there_from_the_start(page: Page) -> None:
    assert [page.accepted(position) for position in range(4)] == [0, 0, 0, None]
    for task in TASKS:
        assert (page.gate("draft_tokens", task), page.gate("expected_gain", task)) == (0, 1)
        assert page.gate("gate", task, reason="probing") == 1
        assert page.gate("gate", task, reason="pays") == page.gate("gate", task, reason="crowded") == 0


def test_an_engine_that_does_not_draft_has_none() -> None:
    page = Page()
    assert page.accepted(0) is page.gate("draft_tokens", "code") is None
    page.metrics.load(load(), None)


def test_accepted_tokens_are_counted_by_position(page: Page) -> None:
    first, second = load(accepted_by_position=(5, 3, 0)), load(accepted_by_position=(9, 4, 1))
    page.metrics.load(first, None)
    page.metrics.load(second, first)
    page.metrics.load(load(accepted_by_position=(1, 0, 0)), None)  # it was started again
    assert [page.accepted(position) for position in range(3)] == [10, 4, 1]


def test_a_gate_and_its_reason(page: Page) -> None:
    fields: dict[str, Any] = {"method": "ngram", "tokens": 4, "acceptance": 0.8, "gain": 1.7}
    opened = GateState(task="code", reason="pays", **fields)
    foreign = GateState(task="", reason="unprofitable", **fields)
    page.metrics.load(load(opened, foreign), None)
    assert [page.gate(name, "code") for name in ("draft_tokens", "acceptance", "expected_gain")] == [
        4,
        0.8,
        1.7,
    ]
    reasons = {reason: page.gate("gate", "code", reason=reason) for reason in ("pays", "probing")}
    assert reasons == {"pays": 1, "probing": 0}
    assert page.gate("gate", "unknown", reason="unprofitable") == 1

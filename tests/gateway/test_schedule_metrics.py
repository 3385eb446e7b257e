"""What is told of an engine's queue, its bands and their targets."""

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from backends.wire import Band, Load
from gateway.schedule_metrics import ScheduleMetrics

BANDS = (Band(below=4, rows=2, ttft_ms=150), Band(rows=9, ttft_ms=900))
LABELS = {"model_name": "small", "engine": "7b/0"}


class Page:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = ScheduleMetrics(self.registry, {"7b/0": "small"})
        self.metrics.describe("7b/0", BANDS)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"headrace_engine_{name}", LABELS | labels)


@pytest.fixture
def page() -> Page:
    return Page()


def load(**counts: Any) -> Load:
    fields: dict[str, Any] = {field.name: 0 for field in msgspec.structs.fields(Load) if field.required}
    return Load(**fields | {"engine": "7b/0", "incarnation": "a", "finished": {}} | counts)


def test_the_table_and_zeros_from_the_start(page: Page) -> None:
    assert [page.value("band_rows", band=band) for band in "01"] == [2, 9]
    assert [page.value("band_ttft_seconds", band=band) for band in "01"] == [0.15, 0.9]
    assert page.value("band_rows", band="2") is None
    assert page.value("first_tokens_total", band="1", in_time="false") == 0
    for name in ("paused", "waiting_tokens", "band", "step_prediction_error", "step_budget_seconds"):
        assert page.value(name) == 0


def test_the_queue_by_traffic(page: Page) -> None:
    page.metrics.load(
        load(
            running=5,
            running_batch=3,
            paused=2,
            waiting=7,
            waiting_batch=1,
            waiting_tokens=99,
            band=1,
            step_error=0.1,
            step_budget=0.06,
        ),
        None,
    )
    seen = {
        (state, traffic): page.value("queue", state=state, traffic=traffic)
        for state in ("running", "waiting")
        for traffic in ("interactive", "batch")
    }
    assert list(seen.values()) == [2, 3, 6, 1]
    names = ("paused", "waiting_tokens", "band", "step_prediction_error", "step_budget_seconds")
    assert [page.value(name) for name in names] == [2, 99, 1, 0.1, 0.06]
    page.metrics.idle("7b/0")
    assert page.value("queue", state="waiting", traffic="interactive") == page.value("waiting_tokens") == 0


def test_first_tokens_are_counted_by_band_and_target(page: Page) -> None:
    first = load(first_in_time=(3, 1), first_late=(1, 0))
    second = load(first_in_time=(5, 1), first_late=(1, 4))
    page.metrics.load(first, None)
    page.metrics.load(second, first)
    page.metrics.load(load(first_in_time=(1, 0), first_late=(0, 0)), None)  # it was started again
    assert [page.value("first_tokens_total", band=band, in_time="true") for band in "01"] == [6, 1]
    assert [page.value("first_tokens_total", band=band, in_time="false") for band in "01"] == [1, 4]

"""The state in lines of text."""

import re
from typing import Any

import msgspec
import pytest

from backends.wire import GateState
from gateway.config import Price
from gateway.dashboard.history import Series
from gateway.dashboard.state import Brief, ReplicaState, RouteState, State, TenantState, TierState
from gateway.dashboard.terminal import SPARK_WIDTH, render, sparks

GATES = (
    GateState(method="ngram", task="code", tokens=4, acceptance=0.6, gain=1.4, reason="pays"),
    GateState(method="ngram", task="chat", tokens=0, acceptance=0.1, gain=0.9, reason="unprofitable"),
)


def state(**changes: Any) -> State:
    replica = ReplicaState(
        name="7b/0", model="smollm2", kind="engine", condition="up", in_flight=2, waiting=1, kv_used=0.5,
        hit_share=0.25, restarts=3, gates=GATES,
    )  # fmt: skip
    tier = TierState(
        name="7b", ready=True, price=Price(), context_length=100, answers=3, prompt_tokens=40, cached_tokens=10,
        completion_tokens=9, cost=0.0025, tokens_per_second=12.5, first_p50=0.12, first_p95=1.5, replicas=(replica,),
        series=Series(requests=[1], tokens=[12.5], first_p50=[0.1], first_p95=[0.1]),
    )  # fmt: skip
    tenant = TenantState(
        name="acme", requests=5, refused=1, tokens=70, input_tokens=50, output_tokens=20, running=2,
        requests_per_minute=60, tokens_per_minute=None, input_tokens_per_minute=None, output_tokens_per_minute=None,
        parallel=4, spent_of_day=1.0, spent_of_month=1.0, per_day=8.0, per_month=None, cost=0.0025,
    )  # fmt: skip
    brief = Brief(
        id="r", at=0.0, endpoint="chat", tenant="acme", status=200, code="engine_died", tier="7b",
        reason="7b: p=0.81 >= 0.70", seconds=1.25, first_text=0.1, completion_tokens=9,
    )  # fmt: skip
    fields: dict[str, Any] = {
        "now": 100.0, "uptime": 3700.0, "version": "1.2", "draining": False, "troubles": (), "running": 2,
        "requests": 3, "failures": 1, "spent": 0.0025, "largest": 0.01, "step": 5, "tiers": (tier,),
        "routes": (RouteState(tier="7b", reason="classifier", count=3),), "tenants": (tenant,), "more_tenants": 0,
        "latest": (brief,),
    }  # fmt: skip
    return State(**fields | changes)


def test_everything_is_there() -> None:
    text = render(state(), 200, colour=False)
    for told in (
        "Headrace 1.2, up 1 h 1 min", "All tiers answer.", "2 running", "1 failures", "saved 75% (0.0025 spent)",
        "prompt cached 25%", "7b             100%   120 ms   1.50 s    12.5", "7b/0", "1 waiting", "KV █████░░░░░",
        "hits 25%", "drafts code 4  3 restarts", "5 of 60", "2 of 4", "12%", "200 engine_died 7b: p=0.81 >= 0.70",
    ):  # fmt: skip
        assert told in text, told


@pytest.mark.parametrize("width", [1, 20, 80, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for colour in (True, False):
        for line in render(state(), width, colour=colour).split("\n"):
            assert len(re.sub(r"\x1b\[[\d;]*m", "", line)) <= width


def test_who_was_sent_elsewhere_later_is_counted_once() -> None:
    routes = (
        RouteState(tier="7b", reason="classifier", count=3),
        RouteState(tier="7b", reason="failover", count=9, again=True),
    )
    assert re.search(r"7b +100%", render(state(routes=routes), 200, colour=False))


@pytest.mark.parametrize(
    ("per_day", "per_month", "told"),
    [(8.0, None, "12%"), (None, 4.0, "25%"), (8.0, 1.0, "100%"), (None, None, "–")],
)
def test_the_budget_that_ends_first(per_day: float | None, per_month: float | None, told: str) -> None:
    [tenant] = state().tenants
    tenant = msgspec.structs.replace(tenant, per_day=per_day, per_month=per_month)
    line = next(
        line for line in render(state(tenants=(tenant,)), 200, colour=False).split("\n") if "acme" in line
    )
    assert line.split()[-2] == told


def test_tenants_that_are_not_shown_are_counted() -> None:
    assert "3 more, less busy" in render(state(more_tenants=3), 200, colour=False)
    assert "less busy" not in render(state(), 200, colour=False)


def test_it_is_no_higher_than_the_terminal() -> None:
    assert render(state(), 80, 5).count("\n") == 4


def test_colours_only_where_they_are_wanted() -> None:
    assert "\x1b" not in render(state(), 80, colour=False)
    assert "\x1b[31m" in render(state(troubles=("7b/0 is down.",)), 80)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"draining": True}, "The gateway is leaving."),
        ({"troubles": ("7b/0 is down.", "The store of limits does not answer.")}, "7b/0 is down. The store"),
        ({"tiers": (), "routes": (), "largest": 0.0}, "saved –"),
    ],
)
def test_what_is_wrong_or_unknown(change: dict[str, Any], told: str) -> None:
    assert told in render(state(**change), 200, colour=False)


def test_sparks_end_with_now_and_are_as_high_as_the_highest() -> None:
    assert sparks([]) == "▁" * SPARK_WIDTH
    assert sparks([1.0] * 120) == "█" * SPARK_WIDTH
    assert sparks([4.0] * 5) == "▁" * (SPARK_WIDTH - 1) + "█"

"""The state of a gateway, from what it counts and runs."""

from typing import Any

import msgspec
import pytest

from backends.backend import Usage
from backends.wire import GateState, Load
from gateway.config import Budget, Limits, Price, Tenant
from gateway.dashboard.overview import SHOWN_TENANTS, Overview
from gateway.dashboard.state import State
from gateway.dashboard.watch import Watch
from gateway.exchange import Exchange
from gateway.metrics import Metrics
from gateway.tiers import Replica, Tier


class Backend:
    """As much of a backend as is looked at."""

    tokenizer = None
    context_length = 100
    takes_tools = True
    recovering = False
    tripped = False
    refusal: Any = None
    stream: Any = None
    warm: Any = None
    start: Any = None
    close: Any = None

    def __init__(self, name: str, available: bool = True, in_flight: int = 0) -> None:
        self.name, self.available, self.in_flight = name, available, in_flight


class Seen:
    def __init__(self) -> None:
        self.engine, self.remote = Backend("7b/0"), Backend("70b/0")
        engines = {"7b/0": "small"}
        self.metrics = Metrics(["7b", "70b"], engines, ["acme", "idle"])
        self.watch = Watch(engines)
        self.tenants = [
            Tenant(name="idle"),
            Tenant(
                name="acme",
                limits=Limits(
                    requests_per_minute=60, parallel=2, output_tokens_per_minute=9, budget=Budget(per_day=2.0)
                ),
            ),
        ]
        tiers = (
            Tier("7b", (Replica(self.engine, "small", 16),), Price(input=0.1)),
            Tier("70b", (Replica(self.remote, "large"),), Price(input=1.0)),
        )
        self.leaving = False
        self.overview = Overview(
            watch=self.watch,
            metrics=self.metrics,
            tiers=tiers,
            tenants=lambda: self.tenants,
            leaving=lambda: self.leaving,
        )

    async def state(self) -> State:
        """As a reader gets it."""
        return msgspec.json.decode(msgspec.json.encode(await self.overview.state()), type=State)


@pytest.fixture
def seen() -> Seen:
    return Seen()


async def test_before_anything_has_happened(seen: Seen) -> None:
    state = await seen.state()
    assert state.troubles == () and not state.draining
    assert (state.requests, state.failures, state.running, state.spent, state.largest) == (0, 0, 0, 0, 0)
    assert [tier.name for tier in state.tiers] == ["7b", "70b"]
    assert state.routes == () and state.latest == ()
    engine, remote = (tier.replicas[0] for tier in state.tiers)
    assert (engine.kind, engine.restarts, engine.kv_used) == ("engine", 0, None)
    assert (remote.kind, remote.restarts) == ("remote", None)


async def test_what_tiers_have_done(seen: Seen) -> None:
    seen.metrics.tokens("acme", "7b", Usage(prompt_tokens=10, completion_tokens=3, cached_tokens=4))
    seen.metrics.tokens("idle", "7b", Usage(prompt_tokens=1, completion_tokens=1))
    seen.metrics.money("acme", "7b", 0.5)
    seen.metrics.money_of_largest("acme", "7b", 4.0)
    seen.metrics.answered("7b", 0.2, 1.0, 3)
    seen.metrics.route("7b", "classifier")
    seen.metrics.route("7b", "classifier")
    state = await seen.state()
    seven, seventy = state.tiers
    assert (seven.prompt_tokens, seven.cached_tokens, seven.completion_tokens) == (11, 4, 4)
    assert (seven.answers, seven.cost) == (1, 0.5)
    assert (seventy.answers, seventy.cost) == (0, 0.0)
    assert (state.spent, state.largest) == (0.5, 4.0)
    assert [(route.tier, route.reason, route.count) for route in state.routes] == [("7b", "classifier", 2)]


async def test_requests_and_failures(seen: Seen) -> None:
    for status, code in (
        (200, None),
        (200, "engine_died"),
        (503, "no_tier_available"),
        (429, "x"),
        (499, None),
    ):
        seen.metrics.request("chat", "7b", status, code, 0.1)
    seen.metrics.request("models", None, 500, "internal_error", 0.1)
    state = await seen.state()
    assert (state.requests, state.failures) == (5, 2)


async def test_an_engine_s_own_words(seen: Seen) -> None:
    gates = (GateState(method="ngram", task="code", tokens=4, acceptance=0.6, gain=1.4, reason="pays"),)
    fields: dict[str, Any] = {field.name: 0 for field in msgspec.structs.fields(Load) if field.required}
    fields |= {"engine": "7b/0", "incarnation": "a", "finished": {}, "gates": gates}
    fields |= {"waiting": 3, "blocks_total": 100, "blocks_free": 20, "blocks_cached": 30}
    seen.watch.load(Load(**fields | {"prefix_queries": 50, "prefix_hits": 40}))
    engine = (await seen.state()).tiers[0].replicas[0]
    assert (engine.waiting, engine.kv_used, engine.hit_share) == (3, 0.5, 0.8)
    assert engine.gates == gates
    seen.engine.available = False
    gone = (await seen.state()).tiers[0].replicas[0]
    assert (gone.condition, gone.waiting, gone.kv_used, gone.hit_share, gone.gates) == (
        "down",
        *[None] * 3,
        (),
    )


@pytest.mark.parametrize(
    ("change", "condition", "trouble"),
    [
        ({}, "up", None),
        ({"available": False}, "down", "70b/0 is down."),
        ({"available": False, "recovering": True}, "starting", "70b/0 is being started again."),
        ({"available": False, "tripped": True}, "resting", "70b/0 has failed and is left alone."),
        ({"available": False, "in_flight": 5}, "busy", None),
    ],
)
async def test_conditions_and_troubles(
    seen: Seen, change: dict[str, Any], condition: str, trouble: str | None
) -> None:
    vars(seen.remote).update(change)
    state = await seen.state()
    assert state.tiers[1].replicas[0].condition == condition
    assert state.troubles == (() if trouble is None else (trouble,))
    assert state.tiers[0].ready


async def test_a_tier_whose_servers_have_failed_does_not_answer_because_one_may_be_tried(seen: Seen) -> None:
    seen.remote.tripped = True
    assert [tier.ready for tier in (await seen.state()).tiers] == [True, False]


async def test_a_store_that_does_not_answer_is_a_trouble(seen: Seen) -> None:
    seen.metrics.state_backend("limits", up=False)
    assert (await seen.state()).troubles == ("The store of limits does not answer.",)


async def test_tenants_beside_their_limits_the_busiest_first(seen: Seen) -> None:
    call = Exchange(id="r", endpoint="chat", tenant=seen.tenants[1])
    with seen.watch.running(call):
        acme, idle = (await seen.state()).tenants
        assert (acme.name, acme.running, acme.requests) == ("acme", 1, 0)
    call.ledger.open("7b", "7b/0").settled(None, Usage(prompt_tokens=3, completion_tokens=2), 0.0)
    with seen.watch.running(call):
        pass
    acme, idle = (await seen.state()).tenants
    assert (acme.requests, acme.tokens, acme.requests_per_minute, acme.parallel) == (2, 5, 60, 2)
    assert (idle.name, idle.requests, idle.requests_per_minute) == ("idle", 0, None)


async def test_who_is_refused_is_not_above_the_limit_but_busy(seen: Seen) -> None:
    call = Exchange(id="r", endpoint="chat", tenant=seen.tenants[1], status=429)
    for _ in range(70):
        with seen.watch.running(call):
            pass
    acme, _ = (await seen.state()).tenants
    assert (acme.name, acme.requests, acme.refused) == ("acme", 0, 70)


async def test_budgets_and_each_kind_of_tokens_beside_their_limits(seen: Seen) -> None:
    seen.metrics.budget("acme", "day", 1.5)
    acme = next(tenant for tenant in (await seen.state()).tenants if tenant.name == "acme")
    assert (acme.spent_of_day, acme.per_day, acme.per_month) == (1.5, 2.0, None)
    assert (acme.input_tokens_per_minute, acme.output_tokens_per_minute) == (None, 9)


async def test_who_was_sent_elsewhere_later_is_told_apart(seen: Seen) -> None:
    seen.metrics.route("7b", "classifier")
    seen.metrics.route("70b", "failover")
    assert [(route.tier, route.again) for route in (await seen.state()).routes] == [
        ("7b", False),
        ("70b", True),
    ]


async def test_many_tenants_are_not_all_shown(seen: Seen) -> None:
    seen.tenants = [Tenant(name=str(number)) for number in range(1000)]
    assert (len((await seen.state()).tenants), (await seen.state()).more_tenants) == (
        SHOWN_TENANTS,
        1000 - SHOWN_TENANTS,
    )

"""Policies of tenants, live and in the shadow."""

from typing import Any

import pytest

from backends.prompt import ChatMessage, Prompt
from classifier import Assessment
from gateway.config import Policy, Price, Remote, Tenant, Tier
from gateway.desk import Desk
from gateway.request import Request
from gateway.routing import Signals, TierSignals
from gateway.tradeoff import RENEW

PRICES = {"7b": Price(input=1, output=1), "70b": Price(input=16, output=16)}
TIERS = [Tier(name=name, remotes=(Remote(url="http://a", model="m"),), price=p) for name, p in PRICES.items()]
SAMPLE = {"7b": [n / 100 for n in range(100)], "70b": [0.99] * 100}


def request(policy: Policy, **changes: Any) -> Request:
    tenant = Tenant(name="acme", policy=policy, tiers=changes.pop("tiers", None))
    return Request(
        id="r", endpoint="chat", tenant=tenant, model="auto", session=None, timeout=1.0, priority=0,
        prompt=Prompt(messages=(ChatMessage("user", "Hi"),)), **changes,
    )  # fmt: skip


def signals(small: float, large: float = 0.99) -> Signals:
    tiers = tuple(
        TierSignals(
            name=n, available=True, context_length=9999, prompt_tokens=256, cached_tokens=0, price=price
        )
        for n, price in PRICES.items()
    )
    return Signals(tiers=tiers, assessment=Assessment(task="qa", good={"7b": small, "70b": large}, seconds=0))


def small(desk: Desk, policy: Policy) -> float:
    routes = [desk.decide(request(policy), signals(n / 100), None) for n in range(100)]
    return sum(route.order[0] == "7b" for route in routes) / len(routes)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_a_goal_is_met_over_requests_like_the_sample(share: float) -> None:
    desk = Desk(TIERS, SAMPLE, {})
    assert small(desk, Policy(small_share=share)) == pytest.approx(share, abs=0.02)


def test_a_goal_is_kept_when_the_requests_become_others() -> None:
    desk, policy = Desk(TIERS, SAMPLE, {}), Policy(small_share=0.5)
    asked = [signals(0.9 + n / 1200) for n in range(100)]
    before = [desk.decide(request(policy), each, None).order[0] for each in asked]
    assert before.count("7b") == len(asked)  # all of them are easy, as the sample goes
    for each in asked * 6:
        desk.saw(request(policy), each)
    after = [desk.decide(request(policy), each, None).order[0] for each in asked]
    assert after.count("7b") == pytest.approx(50, abs=3)


def test_the_default_is_a_floor() -> None:
    desk = Desk(TIERS, SAMPLE, {})
    assert desk.decide(request(Policy()), signals(0.71), None).reason.startswith("7b: p=0.71 >= 0.70")
    assert desk.decide(request(Policy()), signals(0.69), None).order[0] == "70b"
    assert desk.decide(request(Policy(floor=0.6)), signals(0.69), None).order[0] == "7b"


def test_shadows_are_decided_and_not_followed() -> None:
    shadows = {"frugal": Policy(floor=0.1), "half": Policy(cost_share=0.99)}
    route = Desk(TIERS, SAMPLE, shadows).decide(request(Policy()), signals(0.3), None)
    assert route.order[0] == "70b"
    assert route.shadows == {"frugal": "7b", "half": "70b"}


def test_a_named_tier_has_no_policy_and_no_shadow() -> None:
    route = Desk(TIERS, SAMPLE, {"frugal": Policy(floor=0.1)}).decide(request(Policy()), signals(0.3), "70b")
    assert (route.order, route.shadows) == (("70b",), {})


def test_tenants_have_balances_of_their_own_tiers() -> None:
    desk, policy = Desk(TIERS, SAMPLE, {}), Policy(cost_share=0.5)
    for _ in range(RENEW):
        desk.saw(request(policy, tiers=("70b",)), signals(0.5))
    assert desk.decide(request(policy), signals(0.98), None).order[0] == "7b"


def test_a_goal_over_a_tier_without_estimates_is_refused() -> None:
    tenant = Tenant(name="acme", policy=Policy(cost_share=0.5))
    desk = Desk(TIERS, {"7b": [0.5]}, {})
    with pytest.raises(ValueError, match=r"acme: policy.cost_share: the classifier knows 7b, not 70b"):
        desk.check([tenant])
    desk.check([Tenant(name="acme"), Tenant(name="b", policy=Policy(cost_share=0.5), tiers=("7b",))])

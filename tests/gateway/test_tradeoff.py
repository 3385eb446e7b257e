"""Weights that meet goals, found over any requests; and a balance that follows what is asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from gateway.config import Goal, Price
from gateway.tradeoff import RENEW, WINDOW, Balance, Floats, solve

RANDOM = np.random.default_rng(0)
GOOD = np.sort(RANDOM.random((400, 3)), axis=1)
COST = np.array([1.0, 3.0, 16.0]) * RANDOM.uniform(0.5, 2, (400, 1)) * 1e-4


def taken(weight: float) -> NDArray[np.intp]:
    at: NDArray[np.intp] = (GOOD - weight * COST).argmax(axis=1)
    return at


def outcome(weight: float) -> tuple[float, float, float]:
    """Share of cost, of quality, and of requests on the cheapest tier."""
    at = taken(weight)
    rows = np.arange(len(at))
    return (
        COST[rows, at].sum() / COST[:, -1].sum(),
        GOOD[rows, at].sum() / GOOD[:, -1].sum(),
        float((at == 0).mean()),
    )


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
def test_a_share_of_cost_is_used_and_not_exceeded(share: float) -> None:
    cost, _, _ = outcome(solve(GOOD, COST, Goal("cost_share", share)))
    assert share - 0.01 < cost <= share


@pytest.mark.parametrize("share", [0.7, 0.9, 0.99])
def test_a_share_of_quality_is_kept_at_little_more(share: float) -> None:
    _, quality, _ = outcome(solve(GOOD, COST, Goal("quality_share", share)))
    assert share <= quality < share + 0.01


@pytest.mark.parametrize("share", [0.2, 0.7, 1.0])
def test_a_share_of_requests_stays_small(share: float) -> None:
    _, _, small = outcome(solve(GOOD, COST, Goal("small_share", share)))
    assert share <= small < share + 0.01


def test_what_nobody_can_meet_is_met_as_nearly_as_can_be() -> None:
    assert (taken(solve(GOOD, COST, Goal("cost_share", 0.001))) == 0).all()
    assert solve(GOOD, COST, Goal("cost_share", 1.0)) == 0.0
    assert solve(GOOD, np.ones_like(COST), Goal("small_share", 0.5)) == 0.0  # no cost, no trade


def test_the_worth_of_an_answer_is_a_weight_as_it_is() -> None:
    assert solve(GOOD, COST, Goal("answer_worth", 0.004)) == pytest.approx(250)


def test_a_floor_narrows_the_choice() -> None:
    weight = solve(GOOD, COST, Goal("cost_share", 0.3), floor=0.5)
    assert weight > solve(GOOD, COST, Goal("cost_share", 0.3))  # what the floor costs is saved elsewhere


@given(
    arrays(float, (20, 3), elements=st.floats(0, 1)),
    arrays(float, (20, 3), elements=st.floats(1e-6, 1)),
    st.floats(0.05, 1),
    st.floats(0.05, 1),
)
def test_a_larger_budget_never_weighs_cost_more(good: Floats, cost: Floats, one: float, other: float) -> None:
    tight, loose = (solve(good, cost, Goal("cost_share", share)) for share in sorted((one, other)))
    assert tight >= loose * (1 - 1e-9)


def balance(share: float) -> Balance:
    sample = {"7b": [0.2] * 50 + [0.8] * 50, "70b": [0.9] * 100}
    return Balance(Goal("small_share", share), None, ["7b", "70b"], sample, [Price(input=1), Price(input=16)])


def test_a_balance_starts_from_the_sample_and_follows_the_requests() -> None:
    kept = balance(0.5)
    cost = {"7b": 1e-4, "70b": 16e-4}
    before = kept.weight
    for n in range(WINDOW):  # gains are ten times smaller than in the sample
        kept.saw({"7b": 0.5, "70b": 0.5 + 0.07 * (n % 10) / 10}, cost)
    assert kept.weight < before
    gains = [0.07 * n / 10 for n in range(10)]
    assert sum(gain <= kept.weight * 15e-4 for gain in gains) == 5


def test_a_balance_is_renewed_now_and_then_and_ignores_what_it_cannot_use() -> None:
    kept = balance(0.5)
    before = kept.weight
    for _ in range(RENEW):
        kept.saw({"7b": 0.5}, {"7b": 1.0, "70b": 2.0})
    assert kept.weight == before
    for _ in range(RENEW - 1):
        kept.saw({"7b": 0.0, "70b": 1.0}, {"7b": 1.0, "70b": 2.0})
    assert kept.weight == before
    kept.saw({"7b": 0.0, "70b": 1.0}, {"7b": 1.0, "70b": 2.0})
    assert kept.weight != before

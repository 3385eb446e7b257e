"""Weights that meet goals, found over any requests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from classifier.tradeoff import Floats, chosen, solve

RANDOM = np.random.default_rng(0)
GOOD = np.sort(RANDOM.random((400, 3)), axis=1)
COST = np.array([1.0, 3.0, 16.0]) * RANDOM.uniform(0.5, 2, (400, 1)) * 1e-4


def outcome(weight: float) -> tuple[float, float, float]:
    """Share of cost, of quality, and of requests on the cheapest tier."""
    at = chosen(GOOD, COST, weight)
    rows = np.arange(len(at))
    return (
        COST[rows, at].sum() / COST[:, -1].sum(),
        GOOD[rows, at].sum() / GOOD[:, -1].sum(),
        float((at == 0).mean()),
    )


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
def test_a_share_of_cost_is_used_and_not_exceeded(share: float) -> None:
    cost, _, _ = outcome(solve(GOOD, COST, "cost_share", share))
    assert share - 0.01 < cost <= share


@pytest.mark.parametrize("share", [0.7, 0.9, 0.99])
def test_a_share_of_quality_is_kept_at_little_more(share: float) -> None:
    _, quality, _ = outcome(solve(GOOD, COST, "quality_share", share))
    assert share <= quality < share + 0.01


@pytest.mark.parametrize("share", [0.2, 0.7, 1.0])
def test_a_share_of_requests_stays_small(share: float) -> None:
    _, _, small = outcome(solve(GOOD, COST, "small_share", share))
    assert share <= small < share + 0.01


def test_what_nobody_can_meet_is_met_as_nearly_as_can_be() -> None:
    assert (chosen(GOOD, COST, solve(GOOD, COST, "cost_share", 0.001)) == 0).all()
    assert solve(GOOD, COST, "cost_share", 1.0) == 0.0
    assert solve(GOOD, np.ones_like(COST), "small_share", 0.5) == 0.0  # no cost, no trade


def test_the_worth_of_an_answer_is_a_weight_as_it_is() -> None:
    assert solve(GOOD, COST, "answer_worth", 0.004) == pytest.approx(250)


def test_a_floor_narrows_the_choice() -> None:
    weight = solve(GOOD, COST, "cost_share", 0.3, floor=0.5)
    assert weight > solve(GOOD, COST, "cost_share", 0.3)  # what the floor costs is saved elsewhere


@given(
    arrays(float, (20, 3), elements=st.floats(0, 1)),
    arrays(float, (20, 3), elements=st.floats(1e-6, 1)),
    st.floats(0.05, 1),
    st.floats(0.05, 1),
)
def test_a_larger_budget_never_weighs_cost_more(good: Floats, cost: Floats, one: float, other: float) -> None:
    tight, loose = (solve(good, cost, "cost_share", share) for share in sorted((one, other)))
    assert tight >= loose * (1 - 1e-9)


def test_who_is_below_the_floor_is_left_out_where_another_reaches_it() -> None:
    good = np.array([[0.4, 0.6, 0.9], [0.1, 0.2, 0.3]])
    cost = np.array([[1.0, 2.0, 3.0]] * 2)
    assert chosen(good, cost, 1e6, floor=0.5).tolist() == [1, 0]
    assert chosen(good, cost, 0.0, floor=0.5).tolist() == [2, 2]

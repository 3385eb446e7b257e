"""A score beside its baselines, on rows whose figures are known."""

import numpy as np
import pytest

from classifier import corpus
from classifier.corpus import Outcome
from classifier.ranking import compare, gains_by_source

RANDOM = np.random.default_rng(0)


def outcome(n: int, source: str, gain: float, length: int = 10) -> Outcome:
    return Outcome(source, f"question {n}", "x" * length, (0.5 - gain / 2, 0.5 + gain / 2))


ROWS = [outcome(n, "easy" if n % 2 else "hard", 0.0 if n % 2 else 0.8, 10 + n % 7) for n in range(200)]
GAIN = np.array([row.good[1] - row.good[0] for row in ROWS])


def test_the_oracle_bounds_the_router_and_chance_is_exact() -> None:
    compared = compare(RANDOM.random(200), ROWS, gains_by_source(ROWS, ROWS), 1 / 16)
    assert list(compared.baselines) == ["random", "length", "source", "oracle"]
    chance, oracle = compared.baselines["random"], compared.baselines["oracle"]
    assert (chance.apgr, chance.cpt50, chance.auc) == pytest.approx((0.5, 0.5, 0.5))
    assert chance.quality_kept["small 70%"] == pytest.approx((0.3 + 0.3 * 0.4) / 0.7)
    assert compared.router.apgr < oracle.apgr == pytest.approx(0.75)
    assert oracle.auc == 1 and oracle.quality_kept["small 50%"] == pytest.approx(1)
    low, high = compared.router.intervals["apgr"]
    assert low < compared.router.apgr < high and low < 0.5 < high


def test_the_difference_to_length_has_an_interval_of_its_own() -> None:
    value, low, high = compare(GAIN, ROWS, gains_by_source(ROWS, ROWS), 1 / 16).above_length
    assert 0 < low < value < high


def test_a_share_of_the_cost_is_spent_on_the_dear_tier_beyond_the_cheap_one() -> None:
    rows = [outcome(n, "even", 0.5) for n in range(100)]  # 0.25 and 0.75
    for ratio, sent in ((0.1, 0.2 / 0.9), (0.5, 0.0)):
        even = compare(np.zeros(100), rows, np.zeros(100), ratio).router
        assert even.quality_kept["cost 30%"] == pytest.approx((0.25 + 0.5 * sent) / 0.75)


def test_a_source_is_known_from_other_questions_than_the_one_at_hand() -> None:
    lone = Outcome("lone", "the only question", "x", (0.0, 1.0))
    gains = gains_by_source([*ROWS, lone], [*ROWS, lone])
    assert gains[0] == pytest.approx(0.8) and gains[1] == pytest.approx(0.0)
    # Nothing is known of it but what all have in common.
    assert gains[-1] == pytest.approx((100 * 0.8 + 1) / 201)
    assert corpus.fold("question 0") != corpus.fold("question 1")

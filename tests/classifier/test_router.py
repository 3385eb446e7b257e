"""Figures of a router whose estimates are right, and of one that knows nothing."""

import numpy as np
import pytest

from classifier.corpus import Outcome
from classifier.router import all_tiers, measure_router

RANDOM = np.random.default_rng(0)
COLUMNS, PRICES = ("y_7b", "y_13b", "y_70b"), (0.05, 0.15, 0.8)
GOOD = np.sort(RANDOM.random((600, 3)), axis=1)
ROWS = [
    Outcome("one" if n % 3 else "two", f"q{n}", "x" * int(RANDOM.integers(1, 99)), tuple(map(float, drawn)))
    for n, drawn in enumerate(RANDOM.random((600, 3)) < GOOD)
]


def test_true_probabilities_are_calibrated_and_rank_above_length() -> None:
    found = measure_router(GOOD, ROWS, [*ROWS, ROWS[0]], COLUMNS, PRICES)
    assert (found.rows, found.left_out, found.columns) == (600, 1, COLUMNS)
    assert found.ece < 0.07 and all(head.auc > 0.6 for head in found.tiers.values())
    assert all(head.log_loss < head.log_loss_of_mean for head in found.tiers.values())
    assert found.above_length[1] > 0 and found.intervals["apgr"][0] > 0.5
    assert set(found.per_source) == {"one", "two"}
    assert found.auc_within == pytest.approx(
        sum(each.rows * each.router.auc for each in found.per_source.values()) / 600
    )


def test_knowing_nothing_is_chance() -> None:
    found = measure_router(np.full((600, 3), 0.5), ROWS, ROWS, COLUMNS, PRICES)
    assert (found.apgr, found.cpt50, found.auc) == pytest.approx((0.5, 0.5, 0.5))
    assert found.all_tiers.router[0] < found.all_tiers.random


def test_sources_with_few_rows_are_not_told_of() -> None:
    few = [Outcome("few", f"f{n}", "x", (0.0, 0.0, 1.0)) for n in range(19)]
    good = np.vstack([GOOD, np.full((19, 3), 0.5)])
    assert set(measure_router(good, [*ROWS, *few], [], COLUMNS, PRICES).per_source) == {"one", "two"}


def test_all_tiers_at_a_share_of_the_cost() -> None:
    """Half of the questions need the dearest tier; the middle one answers the others."""
    good = np.array([[0.0, 0.1, 1.0], [0.0, 1.0, 1.0]] * 50)
    guess = good - RANDOM.random((100, 3)) * 1e-3  # no two questions are quite alike
    found = all_tiers(guess, good, (0.05, 0.15, 0.8), [str(n) for n in range(100)])
    # 30% of the cost is 0.24 a question: the middle tier, and for 0.09 of 0.65 of the questions the dearest
    assert found.router[0] == pytest.approx(0.5 + 0.05 + 0.9 * 13 / 100, abs=0.02)
    assert found.router[1] < found.router[0] < found.router[2]
    assert found.random == pytest.approx(0.55 + 0.45 * 0.09 / 0.65, abs=1e-9)

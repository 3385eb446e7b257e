"""Heads of the tiers: what they share and what sets them apart are penalised apart."""

import numpy as np
import pytest

from classifier.heads import PENALTIES, Penalties, choose_penalties, fit_head, fit_heads, judge, unseen_logits
from classifier.measures import Floats

RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.standard_normal((300, 6))
FOLDS = np.arange(300) % 5


def quality(gain: float) -> Floats:
    """Two tiers that the first input makes better, and the second more different by `gain`."""
    logits = np.stack([INPUTS[:, 0], INPUTS[:, 0] + gain * INPUTS[:, 1]], axis=1)
    return (RANDOM.random((300, 2)) < 1 / (1 + np.exp(-logits))).astype(float)


def test_equal_penalties_are_heads_apart() -> None:
    good = quality(1.0)
    heads, intercepts = fit_heads(INPUTS, good, Penalties(0.1, 0.1))
    for tier in (0, 1):
        alone = fit_head(INPUTS, good[:, tier], 0.1)
        np.testing.assert_allclose(heads[tier], alone.coef_[0], atol=1e-9)
        assert intercepts[tier] == pytest.approx(alone.intercept_[0], abs=1e-9)


def test_a_heavier_penalty_brings_tiers_together_and_leaves_what_they_share() -> None:
    good = quality(0.0)
    free, bound = (fit_heads(INPUTS, good, Penalties(0.1, apart))[0] for apart in (0.1, 0.003))
    np.testing.assert_allclose(free.mean(axis=0), bound.mean(axis=0), atol=1e-9)
    assert np.abs(bound[1] - bound[0]).sum() < 0.5 * np.abs(free[1] - free[0]).sum()


def test_chosen_penalties_are_cautious_where_tiers_do_not_differ() -> None:
    alike, different = (choose_penalties(INPUTS, quality(gain), FOLDS) for gain in (0.0, 4.0))
    assert alike.apart < different.apart == PENALTIES[-1]
    assert alike.apart <= alike.shared


def test_judgement_is_of_rows_that_were_not_known() -> None:
    good = quality(1.0)
    known, asked = np.flatnonzero(FOLDS != 2), np.flatnonzero(FOLDS == 2)
    by = Penalties(0.1, 0.03)
    told = judge(INPUTS, good, known, asked, by)
    assert told.shape == (60, 2) and (told[:, 1] >= told[:, 0]).all()
    logits = unseen_logits(INPUTS, good, FOLDS, by)[asked]
    np.testing.assert_allclose(told[:, 0], 1 / (1 + np.exp(-logits[:, 0])), atol=1e-9)

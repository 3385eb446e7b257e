"""Leads: what is said of a row without it is what a fit without it says, and penalties are cautious about noise."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from classifier import leads
from classifier.leads import PENALTIES, Penalties, choose_penalties, drawn, fit_leads
from classifier.measures import Floats

RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.standard_normal((120, 6)) * 5
KINDS = np.where(INPUTS[:, 2] > 0, "left", "right")
ALIKE = np.full(120, "")
BY = Penalties(30.0, 100.0)


def quality(gain: float) -> Floats:
    """Two tiers that the first input makes better, and the second more different by `gain`."""
    logits = np.stack([INPUTS[:, 0], INPUTS[:, 0] + gain * INPUTS[:, 1]], axis=1) / 5
    return (RANDOM.random((120, 2)) < 1 / (1 + np.exp(-logits))).astype(float)


@pytest.mark.parametrize("kinds", [KINDS, ALIKE])
def test_unseen_rows_are_told_as_a_fit_without_them_tells(kinds: NDArray[np.str_]) -> None:
    """But for the mean, which all rows share."""
    good = quality(1.0)
    _, unseen = fit_leads(INPUTS, good, kinds, BY)
    others = np.arange(120) != 7
    without, _ = fit_leads(INPUTS[others], good[others], kinds[others], BY)
    np.testing.assert_allclose(unseen[7], without.scores(INPUTS[7:8])[0], atol=0.05)


def test_leads_are_ease_and_gain_and_kinds_are_told_apart() -> None:
    good = quality(4.0)
    found, _ = fit_leads(INPUTS, good, KINDS, BY)
    scores = found.scores(INPUTS)
    assert scores.shape == (120, 4)
    for at, truth in ((0, good.mean(axis=1)), (1, good[:, 1] - good[:, 0])):
        assert np.corrcoef(scores[:, at], truth)[0, 1] > 0.5
    assert (np.where(scores[:, 2] > scores[:, 3], "left", "right") == KINDS).mean() > 0.9


def test_what_is_mostly_zero_counts_as_it_does_elsewhere() -> None:
    """Sparse and dense inputs say the same."""
    sparser = np.hstack([INPUTS, np.eye(120)])
    (dense, _), (rare, _) = (fit_leads(x, quality(1.0) * 0 + 0.5 + 0.1 * INPUTS[:, :2] / 20, KINDS, BY)
                             for x in (sparser, sparse.csr_matrix(sparser)))  # fmt: skip
    np.testing.assert_allclose(dense.coefficients, rare.coefficients, atol=1e-9)


def test_penalties_are_heavy_where_there_is_nothing_to_learn() -> None:
    noise = np.repeat(RANDOM.random((120, 1)), 2, axis=1) + 0.1 * RANDOM.random((120, 2))
    assert choose_penalties(INPUTS, noise).gain == PENALTIES[-1]
    assert choose_penalties(INPUTS, quality(4.0)).gain < PENALTIES[-1]


def test_of_too_many_rows_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leads, "MOST_ROWS", 10)
    few, many = np.arange(10), np.arange(50)
    np.testing.assert_array_equal(drawn(few), few)
    some = drawn(many)
    assert len(some) == 10 and (np.diff(some) > 0).all() and set(some) <= set(many)

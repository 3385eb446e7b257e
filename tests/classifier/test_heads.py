"""Heads of the tiers: along lines of their own for each kind of prompts, fitted on what is said of unseen rows."""

import numpy as np

from classifier.corpus import Outcome
from classifier.heads import MOST_KINDS, fit_heads, judge, kinds_told
from classifier.leads import Penalties
from classifier.measures import Floats, apgr, calibration_error
from classifier.router import FEWEST

RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.standard_normal((600, 6)) * 5
FOLDS = np.arange(600) % 5
KINDS = np.where(INPUTS[:, 2] > 0, "left", "right")
ALIKE = np.full(600, "")
BY = Penalties(30.0, 100.0)


def quality() -> Floats:
    """The first input makes answers better; the dearer tier gains on the left alone."""
    logits = np.stack([INPUTS[:, 0], INPUTS[:, 0] + 8 * (INPUTS[:, 2] > 0)], axis=1) / 4
    return (RANDOM.random((600, 2)) < 1 / (1 + np.exp(-logits))).astype(float)


def test_each_kind_has_its_own_gain() -> None:
    heads = fit_heads(INPUTS, quality(), KINDS, BY)
    assert heads.lines.shape == (2, 3, 2)
    told = heads.good(INPUTS)
    gain = told[:, 1] - told[:, 0]
    assert gain[KINDS == "left"].mean() > 0.2 > 0.1 > gain[KINDS == "right"].mean()


def test_without_kinds_there_is_one_line() -> None:
    heads = fit_heads(INPUTS, quality(), ALIKE, BY)
    assert heads.lines.shape == (1, 3, 2)
    assert np.corrcoef(heads.good(INPUTS)[:, 0], INPUTS[:, 0])[0, 1] > 0.8


def test_judgement_is_of_rows_that_were_not_known_and_calibrated() -> None:
    good = quality()
    known, asked = np.flatnonzero(FOLDS != 2), np.flatnonzero(FOLDS == 2)
    told = judge(INPUTS, good, KINDS, known, asked, BY)
    assert told.shape == (120, 2) and (told[:, 1] >= told[:, 0]).all()
    changed = good.copy()
    changed[asked] = 1 - changed[asked]
    np.testing.assert_array_equal(judge(INPUTS, changed, KINDS, known, asked, BY), told)
    assert apgr(told[:, 1] - told[:, 0], good[asked, 1] - good[asked, 0]) > 0.6
    assert calibration_error(told[:, 0], good[asked, 0]) < 0.12


def outcomes(source: str, rows: int) -> list[Outcome]:
    return [Outcome(source, f"{source} {n}", f"{source} {n}", (0.1, 0.9)) for n in range(rows)]


def test_kinds_are_sources_with_enough_rows() -> None:
    rows = [*outcomes("a", FEWEST), *outcomes("b", FEWEST), *outcomes("rare", FEWEST - 1)]
    assert set(kinds_told(rows).tolist()) == {"a", "b", ""}
    assert set(kinds_told(rows[:FEWEST] + rows[-3:]).tolist()) == {""}


def test_there_are_not_too_many_kinds() -> None:
    rows = [row for n in range(MOST_KINDS + 5) for row in outcomes(str(n), FEWEST)]
    assert len(set(kinds_told(rows).tolist())) == MOST_KINDS + 1

"""What prompts alone tell: as much as there is in them, and nothing of the outcomes that are asked for."""

from typing import Any

import numpy as np

from classifier.measures import auc
from gateway.learning.prompts import expected, reassessed


def test_it_learns_what_prompts_tell_and_no_more() -> None:
    """Sums are hard for the small tier, and for the large one nothing is; coins are thrown for the third."""
    random = np.random.default_rng(0)
    hard = random.random(200) < 0.5
    prompts = [
        f"What is {n} + {n + 7}?" if sums else f"Name a river near {n}." for n, sums in enumerate(hard)
    ]
    coins = (random.random(200) < 0.5).astype(float)
    good = np.array([np.where(hard, 0.0, 1.0), np.ones(200)]).T
    folds = np.arange(200) % 5
    told = expected(prompts, good, folds)
    assert told.shape == (200, 2) and ((told > 0) & (told < 1)).all()
    assert auc(told[:, 0], good[:, 0]) > 0.95 and told[:, 1].min() > 0.9
    assert (told[:, 1] >= told[:, 0]).all()
    thrown = expected(prompts, coins[:, np.newaxis], folds)
    assert 0.3 < auc(thrown[:, 0], coins) < 0.65


def test_recordings_get_what_their_own_prompts_tell(made: Any) -> None:
    """By heads that have not seen the sample; what not every tier has answered stays as it was."""
    small = [made.recording(n, "small", n % 2 == 0, [-0.5] * 9) for n in range(120)]
    large = [made.recording(n, "large", True, [-0.5] * 9) for n in range(110)]
    words = {
        each.sample: f"Name a river near {n}." if each.good else f"What is {n} + {n + 7}?"
        for n, each in enumerate(small)
    }
    told = reassessed([*small, *large], words, ("small", "large"))
    assert [each.sample for each in told] == [each.sample for each in (*small, *large)]
    estimates = np.array([each.expected for each in told[:110]])
    assert auc(estimates, np.array([float(each.good) for each in small[:110]])) > 0.95
    assert [each.expected for each in told[110:120]] == [0.5] * 10
    assert reassessed(small, words, ("small", "large")) == small

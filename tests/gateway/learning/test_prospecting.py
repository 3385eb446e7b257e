"""What is learnt of dearer tiers, on made-up ones that fail together or each for itself."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gateway.config import Price
from gateway.learning.calibrating import calibrate
from gateway.learning.outcomes import Verdicts, outcomes, terms
from gateway.learning.prospecting import foreseen, prospects, seen_through
from gateway.learning.recordings import Recording
from gateway.learning.strategies import mixed, unseen, weights, worthwhile

PRICES = {"small": Price(input=1, output=1), "large": Price(input=10, output=10)}
SMALL, LARGE = ("model of small", "float32"), ("model of large", "float32")


@pytest.fixture(scope="module")
def together(made: Any) -> list[Recording]:
    """The large tier is right where the small one is, and on every fifth sample besides."""
    small = made.tier("small", 300, 0.0, 3.0)
    large = [
        made.recording(number, "large", each.good or number % 5 == 0, [-0.5] * 30)
        for number, each in enumerate(small)
    ]
    return [*small, *large]


def test_a_doubt_that_is_shared(together: list[Recording]) -> None:
    [found] = prospects(together)[SMALL]
    assert (found.model, found.weights) == LARGE and found.own > 0.5 and found.auc > 0.7
    assert found.estimate(0.5, 0.1) < 0.5 < found.estimate(0.5, 0.9)


def test_a_doubt_of_its_own(two_tiers: list[Recording]) -> None:
    """Nearly always right, whatever the small one says."""
    [found] = prospects(two_tiers)[SMALL]
    assert found.estimate(0.5, 0.1) > 0.8 and found.estimate(0.5, 0.9) > 0.8


def test_calibrations_carry_them(together: list[Recording]) -> None:
    found = calibrate(together).of(*SMALL)
    assert found is not None and found.prospect(*LARGE) == prospects(together)[SMALL][0]
    assert found.prospect(*SMALL) is None and found.prospect("model of large", "int8") is None


def test_what_only_one_tier_has_answered_tells_nothing(together: list[Recording]) -> None:
    alone = [each for each in together if each.tier == "small"]
    assert prospects(alone) == {SMALL: ()}


def test_foreseen_by_rules_that_have_not_seen_the_sample(together: list[Recording]) -> None:
    """Outcomes of a fold change nothing of what is foreseen in it."""
    verdicts = {name: Verdicts([each for each in together if each.tier == name]) for name in PRICES}
    found = outcomes(together, PRICES, verdicts, terms("hold", 16))
    told = foreseen(found).onward
    held = found.folds == 2
    turned = found.good.copy()
    turned[held] = 1 - turned[held]
    again = foreseen(replace(found, good=turned)).onward
    np.testing.assert_array_equal(told[held], again[held])
    assert not np.array_equal(told[~held], again[~held])
    sure = found.confidence[:, 0] > 0.8
    assert told[sure, 0, 1].mean() > 0.8 > told[found.confidence[:, 0] < 0.2, 0, 1].mean()


def test_nobody_judges_better_than_who_sees_through(together: list[Recording]) -> None:
    """For no share of the cost, where all begin on the small tier."""
    verdicts = {name: Verdicts([each for each in together if each.tier == name]) for name in PRICES}
    ended = outcomes(together, PRICES, verdicts, terms("end", 16))
    judged, perfect = foreseen(ended), seen_through(ended)
    assert (perfect.confidence == ended.good).all() and np.isnan(ended.onward).all()
    for share in (0.3, 0.5, 0.7):
        settings = [(0, weight) for weight in weights(ended)]
        best, real = (unseen(each, worthwhile, settings, share) for each in (perfect, judged))
        assert (
            best.good.sum() > real.good.sum() > 300 * mixed(ended, real.cost.sum() / ended.cost[:, -1].sum())
        )

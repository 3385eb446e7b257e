"""What strategies cost and keep: by hand on four samples, and on made-up tiers whose law is known."""

from typing import Any

import numpy as np
import pytest

from gateway.config import Price
from gateway.learning.outcomes import FOLDS, Outcomes, Verdicts, fold, outcomes, terms, worth_judging
from gateway.learning.strategies import (
    THRESHOLDS,
    always,
    best_mix,
    best_possible,
    both,
    cascade,
    cascades,
    closed,
    measured,
    mixed,
    router,
    unseen,
    weights,
    worthwhile,
)

PRICES = {"small": Price(input=1, output=1), "large": Price(input=10, output=10)}


@pytest.fixture(scope="module")
def verdicts(two_tiers: list[Any]) -> dict[str, Verdicts]:
    return {name: Verdicts([each for each in two_tiers if each.tier == name]) for name in PRICES}


@pytest.fixture
def four() -> Outcomes:
    """Four samples: the small tier is right on the first two, and sure of the first and the last."""
    return Outcomes(
        tiers=("small", "large"),
        samples=("a", "b", "c", "d"),
        good=np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]),
        expected=np.array([[0.9, 0.9], [0.5, 0.9], [0.5, 0.9], [0.1, 0.1]]),
        usual=np.array([[1.0, 10.0]] * 4),
        confidence=np.array([[0.9, np.nan], [0.4, np.nan], [0.2, np.nan], [0.8, np.nan]]),
        held=np.array([[0.5, 5.0]] * 4),
        rest=np.array([[0.5, 5.0]] * 4),
        dearer=np.tile(np.array([1.0, 10.0]), (4, 2, 1)),
        onward=np.tile(
            np.array([[0.9, 0.9], [0.9, 0.9], [0.9, 0.9], [0.05, 0.05]])[:, np.newaxis], (1, 2, 1)
        ),
        cost=np.array([[1.0, 10.0]] * 4),
        folds=np.array([0, 1, 2, 3]),
    )


def test_by_hand(four: Outcomes) -> None:
    small, large = (measured(four, always(four, tier)) for tier in (0, 1))
    assert (small.share, small.quality) == (0.1, 0.5) and (large.share, large.quality) == (1.0, 0.75)
    climbed = cascade(four, (0, 0.5))  # b and c go up
    assert climbed.cost.tolist() == [1.0, 10.5, 10.5, 1.0] and climbed.good.tolist() == [1.0, 1.0, 1.0, 0.0]
    assert cascade(four, (1, 0.5)).cost.tolist() == [10.0] * 4  # who begins above stays there
    sent = router(four, 0.03)  # 0.4 more for 9 is worth it
    assert sent.cost.tolist() == [1.0, 10.0, 10.0, 1.0]
    begun = both(four, (0.03, 0.95))  # the first and the last begin below and climb
    assert begun.cost.tolist() == [10.5, 10.0, 10.0, 10.5]


def test_worth_by_hand(four: Outcomes) -> None:
    """b and c gain .5 and .7 for 9.5 more; the last is hopeless, however unsure its answer."""
    assert worthwhile(four, (0, 0.01)).cost.tolist() == [1.0, 10.5, 10.5, 1.0]
    assert worthwhile(four, (0, 0.06)).cost.tolist() == [1.0, 1.0, 10.5, 1.0]
    four.confidence[3, 0] = 0.01
    assert worthwhile(four, (0, 0.01)).cost.tolist() == [1.0, 10.5, 10.5, 1.0]
    # The router sent b and c up.
    assert worthwhile(four, (None, 0.03)).cost.tolist() == [1.0, 10.0, 10.0, 1.0]
    four.confidence[:, 0] = np.nan
    assert worthwhile(four, (0, 0.0)).cost.tolist() == [1.0] * 4  # of which nothing can be said


def test_what_an_answer_will_cost_decides_nothing(four: Outcomes) -> None:
    """How long it gets is known to nobody beforehand."""
    sent, begun = router(four, 0.03), worthwhile(four, (None, 0.03))
    four.cost[:] = [[10.0, 1.0], [1.0, 99.0], [99.0, 1.0], [1.0, 10.0]]
    assert router(four, 0.03).good.tolist() == sent.good.tolist()
    assert worthwhile(four, (None, 0.03)).good.tolist() == begun.good.tolist()
    assert router(four, 0.03).cost.tolist() == [10.0, 99.0, 1.0, 1.0]


def test_a_coin_spends_what_one_setting_would_leave(four: Outcomes) -> None:
    """Samples that are alike and of which only the large tier's answers are good: all of them go the same way, and a
    coin keeps as much as chance does."""
    alike = four.of(np.array([2, 2, 2, 2]))
    alike.folds[:], alike.expected[:] = range(4), [0.5, 0.9]
    ends = [0.0, 1.0]  # weights of cost
    for share in (0.1, 0.3, 0.55, 1.0):
        found = measured(alike, unseen(alike, router, ends, share))
        assert found.share == pytest.approx(share) and found.quality == pytest.approx(mixed(alike, share))
    assert unseen(alike, router, ends, 0.05).cost.tolist() == [1.0] * 4  # the cheapest, where none is within


def test_the_part_of_the_gap_that_is_closed(four: Outcomes) -> None:
    assert closed(four, best_possible(four, 0.5), 0.5) == pytest.approx(1.0)
    assert closed(four, always(four, 0), 0.1) == 0.0  # there is no gap
    assert closed(four, always(four, 0), 0.4) < 0 < closed(four, cascade(four, (0, 0.3)), 0.4)
    # at what was spent, where that is more
    assert closed(four, always(four, 1), 0.1) == closed(four, always(four, 1), 1.0)


def test_who_is_not_judged_is_kept(four: Outcomes) -> None:
    four.confidence[:, 0] = np.nan
    assert cascade(four, (0, 1.0)).cost.tolist() == [1.0] * 4


def test_chance_is_the_line_between_the_ends(four: Outcomes) -> None:
    assert mixed(four, 0.1) == 0.5 and mixed(four, 1.0) == 0.75
    assert mixed(four, 0.55) == pytest.approx(0.625) and mixed(four, 5.0) == 0.75
    assert mixed(four, 0.55, np.array([0.0, 0.0, 1.0, 0.0])) == pytest.approx(0.5)


def test_the_best_mix_knows_all_tiers() -> None:
    """A middle tier that is nearly as good as the large one: half of the cost buys most of it."""
    zeros = np.zeros((2, 3))
    three = Outcomes(
        tiers=("small", "middle", "large"), samples=("a", "b"), good=np.array([[0.0, 1.0, 1.0], [0.0, 0.6, 1.0]]),
        expected=zeros, usual=zeros, confidence=zeros, held=zeros, rest=zeros,
        dearer=np.zeros((2, 3, 3)), onward=np.zeros((2, 3, 3)),
        cost=np.array([[0.0, 4.0, 10.0]] * 2), folds=np.array([0, 1]),
    )  # fmt: skip
    assert best_mix(three, 0.4) == pytest.approx(0.8) and mixed(three, 0.4) == pytest.approx(0.4)
    assert best_mix(three, 0.2) == pytest.approx(0.4) and best_mix(three, 0.7) == pytest.approx(0.9)
    assert best_mix(three, 1.5) == 1.0 and best_mix(three, 0.0) == 0.0


def test_the_oracle_pays_only_for_what_it_gains(four: Outcomes) -> None:
    best = best_possible(four, 1.0)
    assert best.good.tolist() == [1.0, 1.0, 1.0, 0.0] and best.cost.tolist() == [1.0, 1.0, 10.0, 1.0]
    assert best_possible(four, 0.2).cost.tolist() == [1.0] * 4
    four.good[1, 0], four.cost[1, 1] = 0.0, 5.0  # b is to be had for less than c
    assert best_possible(four, 0.25).good.tolist() == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("when", ["hold", "end"])
def test_on_tiers_whose_confidence_tells(
    two_tiers: list[Any], verdicts: dict[str, Verdicts], when: str
) -> None:
    """Beside chance a cascade keeps more at half of the cost, and not more than is possible."""
    found = outcomes(two_tiers, PRICES, verdicts, terms(when, 16))
    assert len(found) == 300 and set(found.folds.tolist()) == set(range(FOLDS))
    answered = unseen(found, cascade, cascades(found), 0.5)
    kept = measured(found, answered)
    assert 0.45 < kept.share < 0.55
    assert mixed(found, kept.share) + 0.05 < kept.quality
    assert kept.quality <= measured(found, best_possible(found, 1.0)).quality
    combined = measured(
        found, unseen(found, both, [(w, t) for w in weights(found)[:3] for t in THRESHOLDS], 0.5)
    )
    assert combined.share < 0.6


def test_what_is_held_costs_less_than_the_whole(two_tiers: list[Any], verdicts: dict[str, Verdicts]) -> None:
    held = outcomes(two_tiers, PRICES, verdicts, terms("hold", 16))
    ended = outcomes(two_tiers, PRICES, verdicts, terms("end", 16))
    assert np.isfinite(held.confidence[:, 0]).all()
    assert (held.held[:, 0] == (100 + 16) / 1e6).all()
    assert (ended.held == ended.cost).all() and (held.cost == ended.cost).all()


def test_no_rule_judges_the_samples_that_it_was_fitted_on(made: Any) -> None:
    """Every fold but one says that doubt is good: the one that says otherwise is judged by the others."""
    recordings = made.tier("small", 250, 0.0, 3.0)
    turned = [
        made.recording(
            n, "small", not each.good if fold(each.sample) == 0 else each.good, list(each.logprobs)
        )
        for n, each in enumerate(recordings)
    ]
    unseen_by = Verdicts(turned)
    asked = [each for each in turned if fold(each.sample) == 0]
    told = np.array([unseen_by.judged(each, terms("end", 16)).confidence for each in asked], np.float64)
    good = np.array([each.good for each in asked])
    assert told[good].mean() < told[~good].mean()


def test_only_tiers_with_enough_good_answers_take_part(made: Any) -> None:
    recordings = [
        *made.tier("tiny", 100, -3.0, 0.1), *made.tier("small", 100, 2.0, 0.1), *made.tier("large", 5, 2.0, 0.1),
    ]  # fmt: skip
    assert worth_judging(recordings, ["tiny", "small", "large"]) == ("small", "large")

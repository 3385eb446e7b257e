"""Ranking and calibration, against values worked out by hand or by a slower way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from classifier.measures import Ranked, apgr, auc, bootstrap, calibration_error, log_loss


def by_steps(score: list[float], gain: list[float]) -> float:
    """The area under the recovered share, step by step."""
    order = sorted(range(len(score)), key=lambda i: -score[i])
    recovered = [0.0]
    for i in order:
        recovered.append(recovered[-1] + gain[i] / sum(gain))
    return sum((left + right) / 2 for left, right in zip(recovered, recovered[1:], strict=False)) / len(score)


@given(
    st.integers(2, 30).flatmap(
        lambda n: st.tuples(st.permutations(range(n)), arrays(float, n, elements=st.floats(0.1, 1)))
    )
)
def test_apgr_is_the_area_under_the_recovered_share(drawn: tuple[list[int], np.ndarray]) -> None:
    score, gain = np.array(drawn[0], float), drawn[1]
    assert apgr(score, gain) == pytest.approx(by_steps(score.tolist(), gain.tolist()))


def test_apgr_of_a_perfect_a_reversed_and_no_ranking() -> None:
    gain = np.array([1.0, 0.0, 0.0, 0.0])
    assert apgr(gain, gain) == pytest.approx(0.875)
    assert apgr(-gain, gain) == pytest.approx(0.125)
    assert apgr(np.zeros(4), gain) == pytest.approx(0.5)


def test_apgr_without_any_gain_is_chance() -> None:
    assert apgr(np.array([1.0, 2.0]), np.zeros(2)) == 0.5


def interval(score: np.ndarray, gain: np.ndarray, questions: list[str]) -> tuple[float, float]:
    ranked = Ranked(score, gain)
    return bootstrap(lambda weight: {"apgr": ranked.curve(weight).apgr}, questions)["apgr"]


def test_the_interval_covers_the_figure_and_is_the_same_each_time() -> None:
    random = np.random.default_rng(1)
    score, gain = random.random(200), random.random(200)
    questions = [f"q{i // 2}" for i in range(200)]
    low, high = interval(score, gain, questions)
    assert (low, high) == interval(score, gain, questions)
    assert low < apgr(score, gain) < high


def test_twins_are_one_piece_of_evidence() -> None:
    random = np.random.default_rng(2)
    score, gain = random.random(50), random.random(50)
    names = [str(i) for i in range(50)]
    low, high = interval(score, gain, names)
    again = interval(np.repeat(score, 4), np.repeat(gain, 4), [name for name in names for _ in range(4)])
    assert again[1] - again[0] == pytest.approx(high - low, rel=0.2)


def test_calibration_error() -> None:
    truth = np.array([0.0, 1.0] * 50)
    assert calibration_error(np.full(100, 0.5), truth) == pytest.approx(0)
    assert calibration_error(np.full(100, 0.7), truth) == pytest.approx(0.2)
    assert calibration_error(truth, truth) == 0


def test_log_loss_takes_fractions_and_certainties() -> None:
    assert log_loss(np.array([0.5]), np.array([0.3])) == pytest.approx(np.log(2))
    assert np.isfinite(log_loss(np.array([0.0, 1.0]), np.array([1.0, 0.0])))


GAINS = np.array([1.0, 0.0, 1.0, 0.0])
SCORES = np.array([4.0, 3.0, 2.0, 1.0])


def test_the_curve_of_a_ranking_by_hand() -> None:
    curve = Ranked(SCORES, GAINS).curve()
    assert curve.sent.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert curve.recovered.tolist() == [0, 0.5, 0.5, 1, 1]
    assert curve.cpt(0.5) == 0.25
    assert curve.cpt(0.8) == pytest.approx(0.5 + 0.25 * 0.6)
    assert curve.auc == pytest.approx(0.75)  # three of four pairs stand in their order
    assert curve.gained(0.25) == pytest.approx(0.25)
    assert curve.gap == 0.5


def test_equal_scores_are_the_random_router_exactly() -> None:
    curve = Ranked(np.zeros(4), GAINS).curve()
    assert (curve.apgr, curve.auc, curve.cpt(0.5), curve.cpt(0.8)) == (0.5, 0.5, 0.5, 0.8)


def test_a_dear_tier_that_is_worse_in_places_can_be_beaten() -> None:
    curve = Ranked(np.array([3.0, 2.0, 1.0]), np.array([1.0, 0.5, -1.0])).curve()
    assert curve.cpt(1.0) < 0.34 and curve.gained(2 / 3) == pytest.approx(0.5)
    assert Ranked(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.5, -1.0])).curve().cpt(0.8) > 0.9


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4).filter(any))
def test_counting_a_row_twice_is_having_it_twice(counts: list[int]) -> None:
    weighed = Ranked(SCORES, GAINS).curve(np.array(counts, float))
    repeated = Ranked(np.repeat(SCORES, counts), np.repeat(GAINS, counts)).curve()
    assert weighed.apgr == pytest.approx(repeated.apgr)
    assert weighed.auc == pytest.approx(repeated.auc)
    assert weighed.cpt(0.5) == pytest.approx(repeated.cpt(0.5))


def test_auc_of_estimates() -> None:
    assert auc(np.array([0.9, 0.8, 0.3, 0.1]), np.array([1.0, 0.0, 1.0, 0.0])) == pytest.approx(0.75)
    assert auc(np.array([0.9, 0.1]), np.array([1.0, 1.0])) == 0.5


def test_a_bootstrap_finds_the_spread_of_a_mean() -> None:
    values = np.random.default_rng(3).normal(size=400)
    low, high = bootstrap(
        lambda w: {"mean": float(np.average(values, weights=w))}, list(map(str, range(400)))
    )["mean"]
    assert high - low == pytest.approx(2 * 1.96 / 20, rel=0.15)
    assert low < values.mean() < high

"""Ranking and calibration, against values worked out by hand or by a slower way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from classifier.measures import apgr, apgr_interval, calibration_error, log_loss


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


def test_the_interval_covers_the_figure_and_is_the_same_each_time() -> None:
    random = np.random.default_rng(1)
    score, gain = random.random(200), random.random(200)
    questions = [f"q{i // 2}" for i in range(200)]
    interval = apgr_interval(score, gain, questions)
    assert interval == apgr_interval(score, gain, questions)
    assert interval.low < interval.value < interval.high
    assert interval.value == apgr(score, gain)


def test_twins_are_one_piece_of_evidence() -> None:
    random = np.random.default_rng(2)
    score, gain = random.random(50), random.random(50)
    names = [str(i) for i in range(50)]
    once = apgr_interval(score, gain, names)
    twice = apgr_interval(np.repeat(score, 4), np.repeat(gain, 4), [name for name in names for _ in range(4)])
    assert twice.high - twice.low == pytest.approx(once.high - once.low, rel=0.2)


def test_calibration_error() -> None:
    truth = np.array([0.0, 1.0] * 50)
    assert calibration_error(np.full(100, 0.5), truth) == pytest.approx(0)
    assert calibration_error(np.full(100, 0.7), truth) == pytest.approx(0.2)
    assert calibration_error(truth, truth) == 0


def test_log_loss_takes_fractions_and_certainties() -> None:
    assert log_loss(np.array([0.5]), np.array([0.3])) == pytest.approx(np.log(2))
    assert np.isfinite(log_loss(np.array([0.0, 1.0]), np.array([1.0, 0.0])))

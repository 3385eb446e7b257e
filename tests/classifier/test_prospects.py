"""What another model would make of a prompt: fitted on tiers whose law is known."""

import math

import numpy as np
import pytest

from classifier.confide import fit_prospect
from classifier.prospects import Prospect, logit

RANDOM = np.random.default_rng(5)


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_the_estimate_is_the_formula() -> None:
    found = Prospect(model="m", weights="w", bias=0.2, prompt=0.5, own=2.0, auc=0.8, answers=90, good=40)
    assert found.estimate(0.7, 0.4) == pytest.approx(sigmoid(0.2 + 0.5 * logit(0.7) + 2.0 * logit(0.4)))
    assert 0 < found.estimate(0.0, 0.0) < found.estimate(1.0, 1.0) < 1


def test_a_law_is_found_again() -> None:
    """Models that fail together: the weight of the one's own doubt comes out as it was put in."""
    prompt, own = RANDOM.uniform(0.1, 0.9, 4000), RANDOM.uniform(0.05, 0.95, 4000)
    chance = [sigmoid(0.3 + 0.8 * logit(p) + 0.6 * logit(c)) for p, c in zip(prompt, own, strict=True)]
    good = (RANDOM.uniform(size=4000) < chance).tolist()
    found = fit_prospect("m", "w", prompt.tolist(), own.tolist(), good)
    assert found is not None and (found.model, found.weights, found.answers) == ("m", "w", 4000)
    assert (found.bias, found.prompt, found.own) == pytest.approx((0.3, 0.8, 0.6), abs=0.15)
    assert found.auc > 0.7


def test_noise_teaches_nothing() -> None:
    good = (RANDOM.uniform(size=600) < 0.5).tolist()
    prompt, own = RANDOM.uniform(0.1, 0.9, (2, 600)).tolist()
    found = fit_prospect("m", "w", prompt, own, good)
    assert found is not None and abs(found.own) < 0.3 and 0.4 < found.auc < 0.6


@pytest.mark.parametrize("good", [[True] * 29 + [False] * 50, [True] * 50 + [False] * 9, []])
def test_too_few_answers(good: list[bool]) -> None:
    assert fit_prospect("m", "w", [0.5] * len(good), [0.5] * len(good), good) is None

"""Lines of kinds: a sure kind's own line, and the mean of lines in between."""

import numpy as np
import pytest

from classifier.lines import along, likely, straight

LINES = np.array([[[0.0, 1.0], [2.0, 2.0]], [[-1.0, -2.0], [0.5, 4.0]]])  # two kinds, one lead, two tiers


@pytest.mark.parametrize(
    ("logits", "expected"),
    [((50.0, 0.0), (6.0, 7.0)), ((0.0, 50.0), (0.5, 10.0)), ((1.0, 1.0), (3.25, 8.5))],
)
def test_a_prompt_lies_between_the_lines_of_its_kinds(
    logits: tuple[float, float], expected: tuple[float, float]
) -> None:
    np.testing.assert_allclose(along(LINES, np.array([3.0, *logits])), expected, atol=1e-9)


def test_many_prompts_are_each_what_they_are_alone() -> None:
    scores = np.random.default_rng(0).standard_normal((7, 3))
    for row, together in zip(scores, along(LINES, scores), strict=True):
        np.testing.assert_allclose(along(LINES, row), together)


def test_one_line_needs_no_kinds() -> None:
    np.testing.assert_allclose(along(LINES[:1], np.array([3.0])), [6.0, 7.0])


def test_straight_lines_leave_logits_as_they_are() -> None:
    logits = np.array([[0.3, -2.0, 1.5], [0.0, 4.0, 9.0]])
    np.testing.assert_allclose(along(straight(3), logits), logits)


def test_likelihoods_sum_to_one_however_large_the_logits() -> None:
    told = likely(np.array([[900.0, 0.0, -900.0], [0.0, 0.0, 0.0]]))
    np.testing.assert_allclose(told, np.array([[1.0, 0.0, 0.0], [1 / 3] * 3]))

"""What was lost, and how sure that is."""

import math

import numpy as np
import pytest

from gateway.learning.losses import Mark, paired_loss, score


def marks(values: list[int]) -> list[Mark]:
    return [Mark(float(value)) for value in values]


def test_perplexity_is_per_token_and_its_loss_is_the_ratio() -> None:
    against = [Mark(20.0, 10), Mark(60.0, 20)]
    model = [Mark(22.0, 10), Mark(64.0, 20)]
    assert score("perplexity", against) == pytest.approx(math.exp(80 / 30))
    found = paired_loss("perplexity", model, against)
    assert found.loss == pytest.approx(math.exp(6 / 30) - 1)
    assert found.model / found.against - 1 == pytest.approx(found.loss)
    assert found.low <= found.loss <= found.high


def test_a_model_of_another_tokenizer_is_measured_by_the_same_characters() -> None:
    """Half as many tokens, each twice as hard: nothing is lost."""
    found = paired_loss("perplexity", [Mark(30.0, 5)] * 3, [Mark(30.0, 10)] * 3)
    assert (found.loss, found.model) == (0.0, found.against)


def test_the_share_that_is_right_is_lost_by_share() -> None:
    found = paired_loss("answers", marks([1, 1, 1, 0, 0] * 20), marks([1, 1, 1, 1, 0] * 20))
    assert (found.model, found.against) == (0.6, 0.8)
    assert found.loss == pytest.approx(0.25) and 0.15 < found.low < 0.25 < found.high < 0.35


def test_pairs_make_the_interval_narrow() -> None:
    """The same items are hard for both; only what differs is in doubt."""
    draw = np.random.default_rng(1)
    hard = draw.normal(200, 80, 200)
    paired = paired_loss("perplexity", [Mark(h + 1, 100) for h in hard], [Mark(h, 100) for h in hard])
    assert paired.high - paired.low < 1e-9
    other = draw.permutation(hard)
    loose = paired_loss("perplexity", [Mark(h + 1, 100) for h in other], [Mark(h, 100) for h in hard])
    assert loose.high - loose.low > 0.05


def test_the_interval_holds_the_truth_about_nine_times_in_ten() -> None:
    draw = np.random.default_rng(5)
    held = 0
    for _ in range(40):
        against = draw.random(150) < 0.7
        model = np.where(draw.random(150) < 0.1, ~against, against)  # 0.7 → 0.66
        found = paired_loss("choices", marks(list(model)), marks(list(against)))
        held += found.low <= 1 - 0.66 / 0.7 <= found.high
    assert held >= 31  # 36 are expected


def test_where_nothing_was_right_nothing_can_be_lost() -> None:
    with pytest.raises(ValueError, match="has nothing right here"):
        paired_loss("answers", marks([0, 1]), marks([0, 0]))
    # Draws without it count for none.
    assert paired_loss("answers", marks([0] * 12), marks([1] + [0] * 11)).high == 1.0

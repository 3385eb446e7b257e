"""Doubt: known words keep what was learnt, unknown ones give way to what is usual."""

import numpy as np
import pytest

from classifier import lexicon
from classifier.doubt import Doubt, trust
from classifier.features import extract

MET = "how many apples does the farmer sell at the market"


@pytest.fixture(scope="module")
def doubt() -> Doubt:
    known = np.zeros(len(lexicon.shipped().hashes), bool)
    known[extract(MET).words] = True
    return Doubt(known, np.array([0.2, 0.6], np.float32), np.array([4.0, 8.0], np.float32))


def test_the_share_of_unknown_words_goes_by_their_rarity(doubt: Doubt) -> None:
    assert doubt.unknown(extract(MET)) == 0
    assert doubt.unknown(extract("glaciers erode granite")) == 1
    assert 0.2 < doubt.unknown(extract("how many glaciers does the")) < 1
    assert doubt.unknown(extract("")) == doubt.unknown(extract("?!? 12 \ud800")) == 1


def test_estimates_go_to_the_usual_as_words_are_unknown(doubt: Doubt) -> None:
    learnt = np.array([0.9, 0.99], np.float32)
    met, mixed, strange = (
        doubt.temper(learnt, extract(text))
        for text in (MET, f"{MET}: granite, glaciers, lava", "granite glaciers")
    )
    np.testing.assert_allclose(met, learnt, atol=0.02)
    np.testing.assert_allclose(strange, doubt.usual, atol=0.02)
    assert ((strange < mixed) & (mixed < met)).all()


def test_trust_falls_with_unknown_words() -> None:
    shares = trust(np.linspace(0, 1, 5), np.array([3.0, 3.0]))
    assert (np.diff(shares) < 0).all() and shares[-1] == pytest.approx(0.5)

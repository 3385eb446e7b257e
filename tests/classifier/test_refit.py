"""What own labels are worth, where it is known: one source that words give away, and one that is noise."""

import numpy as np
import pytest

from classifier import refit
from classifier.corpus import Outcome
from classifier.refitted import Refitted

RANDOM = np.random.default_rng(0)


def rows() -> list[Outcome]:
    found = []
    for n in range(80):
        hard = n % 2
        text = f"Prove lemma {n}" if hard else f"Name colour {n}"
        found.append(Outcome("plain", text, text, (0.1, 0.9) if hard else (0.9, 0.9)))
        text = f"Ask about {n}"
        found.append(Outcome("noise", text, text, (0.5, float(RANDOM.random()))))
    return found


@pytest.fixture(scope="module")
def found() -> Refitted:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refit, "LABELS", 60)
        patch.setattr(refit, "DRAWS", 2)
        return refit.refit(rows(), (1.0, 16.0))


def test_estimates_are_of_rows_that_were_not_seen(found: Refitted) -> None:
    crossed = found.cross_validated
    assert crossed.rows == 160
    assert 0.6 < crossed.router.apgr <= crossed.baselines["oracle"].apgr
    assert found.all_tiers.router[0] > found.all_tiers.random


def test_few_labels_learn_what_is_plain(found: Refitted) -> None:
    few = found.few_labels
    assert few is not None and few.labels == 60 and len(few.draws) == 2
    assert few.apgr == pytest.approx(np.mean(few.draws)) and few.apgr > 0.55


def test_a_source_that_was_left_out_teaches_nothing(found: Refitted) -> None:
    """The words of one source say nothing in the other."""
    assert found.leave_one_source_out.keys() == {"plain", "noise"}
    low, high = found.leave_one_source_out["noise"].router.intervals["apgr"]
    assert low < 0.5 < high


def test_there_is_no_telling_of_few_labels_where_there_are_hardly_more() -> None:
    assert refit.refit(rows()[:60], (1.0, 16.0)).few_labels is None

"""Fitting doubt: heads that are wrong about kinds they have not seen lose trust there, and keep it elsewhere."""

import numpy as np
import pytest

from classifier.corpus import Outcome
from classifier.doubting import Sight, fit_doubt, fit_slopes, kinds_of
from classifier.features import extract
from classifier.heads import USUAL
from classifier.inputs import Inputs, inputs_of


def sight(kind: str | None, unknown: float, learnt: float, good: float) -> Sight:
    return Sight(
        kind=kind,
        learnt=np.full((40, 2), learnt),
        good=np.full((40, 2), good),
        usual=np.array([0.5, 0.5]),
        unknown=np.full(40, unknown),
    )


def test_trust_stays_with_known_words_and_goes_with_unknown_ones() -> None:
    seen = sight(None, 0.05, 0.9, 0.9)
    wrong, right = (fit_slopes([seen, sight("other", 0.8, 0.95, good)]) for good in (0.3, 0.95))
    assert seen.tempered(wrong).mean() > 0.85
    assert sight("other", 0.8, 0.95, 0.3).tempered(wrong).mean() < 0.6
    assert sight("other", 0.8, 0.95, 0.95).tempered(right).mean() > 0.8


def test_without_any_kind_left_out_folds_alone_teach() -> None:
    assert fit_slopes([sight(None, 0.1, 0.9, 0.9)])[0] > 2


def rows(sources: int) -> list[Outcome]:
    found = []
    for n in range(60):
        hard = n % 2
        text = f"Prove the lemma on prime numbers {n}" if hard else f"Name the colour of the apple {n}"
        source = ("proofs", "colours")[1 - hard] if sources == 2 else "all"
        found.append(Outcome(source, text, text, (0.1, 0.6) if hard else (0.8, 0.9)))
    return found


def inputs(of: list[Outcome]) -> Inputs:
    return inputs_of([row.prompt for row in of])


@pytest.mark.parametrize("sources", [1, 2])
def test_what_was_met_is_known_and_kinds_count_alike(sources: int) -> None:
    known = rows(sources)
    doubt = fit_doubt(inputs(known), known, USUAL)
    assert doubt.unknown(extract(known[0].prompt)) < 0.01 < 0.9 < doubt.unknown(extract("granite glaciers"))
    assert doubt.usual.tolist() == sorted(doubt.usual.tolist())
    if sources == 2:
        np.testing.assert_allclose(doubt.usual, [0.45, 0.75], atol=1e-6)


def test_kinds_are_sources_or_clusters_where_there_is_one_source() -> None:
    assert set(kinds_of(inputs(rows(2)), rows(2)).tolist()) == {"proofs", "colours"}
    clusters = kinds_of(inputs(rows(1)), rows(1))
    assert 1 < len(set(clusters.tolist())) <= 5
    assert not set(clusters[::2].tolist()) & set(clusters[1::2].tolist())  # proofs and colours lie apart

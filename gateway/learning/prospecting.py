"""What dearer tiers make of prompts on which cheaper ones are unsure, learnt from recorded answers of both."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from classifier.confide import fit_prospect
from classifier.confidence import Floats
from classifier.prospects import Prospect
from gateway.learning.outcomes import Outcomes, Verdicts, terms
from gateway.learning.recordings import Recording

HOLD_TOKENS = 32  # of an answer that is judged


def prospects(recordings: Sequence[Recording]) -> dict[tuple[str, str], tuple[Prospect, ...]]:
    """By model and weight format: of every other model that has answered the same samples, and enough of them."""
    models: dict[tuple[str, str], dict[str, Recording]] = {}
    for each in recordings:
        models.setdefault((each.model, each.weights), {})[each.sample] = each
    found = {}
    for own, answers in models.items():
        sure = _confidences(list(answers.values()))
        others = (_prospect(other, sure, theirs) for other, theirs in sorted(models.items()) if other != own)
        found[own] = tuple(each for each in others if each is not None)
    return found


def _confidences(answers: Sequence[Recording]) -> dict[str, float]:
    """By sample, of rules that have not seen it."""
    verdicts, of = Verdicts(answers), terms("hold", HOLD_TOKENS)
    told = ((each.sample, verdicts.judged(each, of).confidence) for each in answers)
    return {sample: confidence for sample, confidence in told if confidence is not None}


def _prospect(
    of: tuple[str, str], sure: Mapping[str, float], answers: Mapping[str, Recording]
) -> Prospect | None:
    known = [
        (each.expected, sure[sample], each.good)
        for sample, each in answers.items()
        if sample in sure and each.expected is not None
    ]
    if not known:
        return None
    expected, confidence, good = zip(*known, strict=True)
    return fit_prospect(*of, expected, confidence, good)


def foreseen(outcomes: Outcomes) -> Outcomes:
    """With `onward`, by rules that have not seen the sample's fold; by the prompt alone where nothing can be said of an
    answer, or too little is known."""
    tiers = len(outcomes.tiers)
    told = np.repeat(outcomes.expected[:, np.newaxis, :], tiers, axis=1)
    for held in np.unique(outcomes.folds):
        for own in range(tiers):
            for other in range(own + 1, tiers):
                _foresee(outcomes, outcomes.folds == held, own, other, told)
    return replace(outcomes, onward=told)


def seen_through(outcomes: Outcomes) -> Outcomes:
    """As if at the moment of the decision it were known whether the answer is good, and of dearer tiers' what that
    tells: no judge could say more of an answer."""
    return foreseen(replace(outcomes, confidence=outcomes.good))


def _foresee(outcomes: Outcomes, held: NDArray[np.bool_], own: int, other: int, told: Floats) -> None:
    expected, confidence = outcomes.expected[:, other], outcomes.confidence[:, own]
    sure = np.isfinite(confidence)
    known = np.flatnonzero(~held & sure)
    good = (outcomes.good[known, other] > 0.5).tolist()
    found = fit_prospect("", "", expected[known].tolist(), confidence[known].tolist(), good)
    if found is not None:
        for row in np.flatnonzero(held & sure):
            told[row, own, other] = found.estimate(float(expected[row]), float(confidence[row]))

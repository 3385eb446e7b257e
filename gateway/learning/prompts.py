"""What prompts alone tell of recorded outcomes: heads of the shipped kind, fitted on the outcomes of other samples."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.heads import USUAL, judge
from classifier.inputs import inputs_of
from classifier.measures import Floats
from gateway.learning.outcomes import fold
from gateway.learning.recordings import Recording


def expected(prompts: Sequence[str], good: Floats, folds: NDArray[np.intp]) -> Floats:
    """P(good) (N, T) of each tier for each prompt, by heads that have not seen the prompt's fold.

    `good` (N, T): the outcomes; `folds` (N,).
    """
    inputs = inputs_of(prompts).tiers
    told = np.full(good.shape, 0.5)
    for held in np.unique(folds):
        known, asked = np.flatnonzero(folds != held), np.flatnonzero(folds == held)
        told[asked] = judge(inputs, good, known, asked, USUAL)
    return told


def reassessed(
    recordings: Sequence[Recording], words: Mapping[str, str], tiers: Sequence[str]
) -> list[Recording]:
    """With P(good) by heads of these samples' own, each by those that have not seen it; others stay as they are.

    `words`: what was asked, by sample; `tiers`: the cheapest first. Only samples that all of them have answered teach.
    """
    found: dict[str, dict[str, float]] = {}
    for each in recordings:
        found.setdefault(each.sample, {})[each.tier] = float(each.good)
    samples = [sample for sample in words if set(tiers) <= found.get(sample, {}).keys()]
    if not samples:
        return list(recordings)
    good = np.array([[found[sample][tier] for tier in tiers] for sample in samples])
    folds = np.array([fold(sample) for sample in samples], np.intp)
    told = expected([words[sample] for sample in samples], good, folds)
    known = {
        (sample, tier): float(told[row, column])
        for row, sample in enumerate(samples)
        for column, tier in enumerate(tiers)
    }
    return [
        msgspec.structs.replace(each, expected=known.get((each.sample, each.tier), each.expected))
        for each in recordings
    ]

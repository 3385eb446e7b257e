"""What prompts alone tell of recorded outcomes: heads of the shipped kind, fitted on the outcomes of other samples."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from classifier.fit import fit_head, inputs_of
from classifier.measures import Floats
from classifier.model import rising

PENALTY = 0.04


def expected(prompts: Sequence[str], good: Floats, folds: NDArray[np.intp]) -> Floats:
    """P(good) (N, T) of each tier for each prompt, by heads that have not seen the prompt's fold.

    `good` (N, T): the outcomes; `folds` (N,).
    """
    inputs, _ = inputs_of(prompts)
    told = np.full(good.shape, 0.5)
    for held in np.unique(folds):
        known, asked = np.flatnonzero(folds != held), np.flatnonzero(folds == held)
        heads = [fit_head(inputs[known], quality, PENALTY) for quality in good[known].T]
        logits = np.array([head.decision_function(inputs[asked]) for head in heads])
        told[asked] = rising(logits).T
    return told

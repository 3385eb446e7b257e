"""Logistic heads of the tiers, one each, and the penalties that they are fitted with."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from threadpoolctl import ThreadpoolController

from classifier import corpus
from classifier.corpus import Outcome
from classifier.measures import Floats, log_loss
from classifier.model import rising

PENALTIES = (0.001, 0.003, 0.01, 0.03)  # scikit-learn's C; chosen by cross-validation each time
NO_PENALTY = 1e6
CERTAIN = 1e-3  # how far from 0 and 1 the quality of a tier is taken to be at least

# Threads of BLAS that wait for one another cost ten times what they save on vectors as short as these.
_BLAS = ThreadpoolController()


class Penalties(NamedTuple):
    """For what all tiers share, and for what sets them apart."""

    shared: float
    apart: float


USUAL = Penalties(0.01, 0.003)  # where there are too few answers to choose by


def fit_head(inputs: Any, quality: Floats, penalty: float) -> Any:
    """A logistic regression on fractional labels; where all are 0 or all are 1, nearly a constant."""
    if quality.min() == quality.max():
        quality = np.clip(quality, CERTAIN, 1 - CERTAIN)
    labels = np.repeat([1, 0], len(quality))
    shares = np.concatenate([quality, 1 - quality])
    used = np.flatnonzero(shares)
    model = LogisticRegression(C=penalty, max_iter=1000)
    with _BLAS.limit(limits=1):
        return model.fit(inputs[used % len(quality)], labels[used], sample_weight=shares[used])


def fit_heads(inputs: Any, good: Floats, penalties: Penalties) -> tuple[Floats, Floats]:
    """Heads (T, F) and their intercepts (T,), of answers as `good` as (n, T) to prompts (n, F)."""
    found = {penalty: [fit_head(inputs, each, penalty) for each in good.T] for penalty in {*penalties}}
    shared, apart = (
        np.array([[*head.coef_[0], head.intercept_[0]] for head in found[penalty]]) for penalty in penalties
    )
    both = _joined(shared, apart)
    return both[:, :-1], both[:, -1]


def judge(
    inputs: Any, good: Floats, known: NDArray[np.intp], asked: NDArray[np.intp], by: Penalties
) -> Floats:
    """P(good) (asked, T) by heads fitted on the `known` rows alone."""
    heads, intercepts = fit_heads(inputs[known], good[known], by)
    return rising(heads @ inputs[asked].T + intercepts[:, np.newaxis]).T


def unseen_logits(inputs: Any, good: Floats, folds: NDArray[np.intp], penalties: Penalties) -> Floats:
    """Logits (n, T) of each row, by heads that were fitted without the row's fold."""
    shared, apart = (_unseen(inputs, good, folds, penalty) for penalty in penalties)
    return _joined(shared.T, apart.T).T


def choose_penalties(inputs: Any, good: Floats, folds: NDArray[np.intp]) -> Penalties:
    """By cross-validated log loss over all tiers; fewer rows ask for smaller ones."""
    unseen = {penalty: _unseen(inputs, good, folds, penalty) for penalty in PENALTIES}
    pairs = [Penalties(shared, apart) for shared in PENALTIES for apart in PENALTIES if apart <= shared]

    def loss(pair: Penalties) -> float:
        logits = _joined(unseen[pair.shared].T, unseen[pair.apart].T).T
        return log_loss(1 / (1 + np.exp(-logits)), good)

    return min(pairs, key=loss)


def folds_of(rows: Sequence[Outcome]) -> NDArray[np.intp]:
    """(n,): what is held out counts as one fold more."""
    folds = (corpus.fold(row.question) for row in rows)
    return np.array([corpus.FOLDS if fold is None else fold for fold in folds], np.intp)


def _unseen(inputs: Any, good: Floats, folds: NDArray[np.intp], penalty: float) -> Floats:
    logits = np.zeros(good.shape)
    for held in np.unique(folds):
        known, asked = np.flatnonzero(folds != held), np.flatnonzero(folds == held)
        for tier, quality in enumerate(good[known].T):
            head = fit_head(inputs[known], quality, penalty)
            logits[asked, tier] = head.decision_function(inputs[asked])
    return logits


def _joined(shared: Floats, apart: Floats) -> Floats:
    """(T, ...): the mean over the tiers of the one, and how far each tier is from it in the other."""
    joined: Floats = shared.mean(axis=0) + apart - apart.mean(axis=0)
    return joined

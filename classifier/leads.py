"""What the heads of all tiers lean on: a few numbers that inputs tell of a prompt, learnt by ridge regression.

Two leads: ease, the mean quality of the tiers' answers, and gain, the dearest tier's less the cheapest one's; and for
each kind of prompts a logit, how much it looks like one of these. What is said of a row by a regression that was fitted
without it needs no second fit (its residual divided by its part in the inverse: Allen's PRESS, Technometrics 16, 1974),
so that heads are fitted on leads as good as those of unseen prompts.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack
from threadpoolctl import ThreadpoolController

from classifier.measures import Floats

Names = NDArray[np.str_]

LEADS = 2
PENALTIES = (100.0, 300.0, 1000.0, 3000.0, 10000.0)  # one is chosen for each lead
KIND_PENALTY = 3.0
SHARPNESS = 10.0  # of a kind's logits, by its likeness from 0 to 1
MOST_ROWS = 6000  # time grows with their cube; of more, as many are drawn

# Threads of BLAS that wait for one another cost more than they save where others work too.
_BLAS = ThreadpoolController()


class Penalties(NamedTuple):
    """Of ridge regression, for each lead."""

    ease: float
    gain: float


USUAL = Penalties(300.0, 1000.0)  # where there are too few answers to choose by


@dataclass(frozen=True, slots=True)
class Leads:
    """S scores on F inputs: the leads, then the kinds, if there are at least two."""

    coefficients: Floats  # (S, F)
    intercepts: Floats  # (S,)

    def scores(self, inputs: Any) -> Floats:
        """(n, S) of inputs (n, F)."""
        scores: Floats = inputs @ self.coefficients.T + self.intercepts
        return scores


def fit_leads(inputs: Any, good: Floats, kinds: Names, by: Penalties) -> tuple[Leads, Floats]:
    """Of inputs (n, F), answers' quality (n, T) and `kinds` (n,); and the scores (n, S) of each row without it."""
    gram = _gram(inputs)
    parts = [
        _ridge(gram, wanted, penalty)
        for wanted, penalty in (
            *zip(_leads(good).T[:, :, np.newaxis], by, strict=True),
            (_alike(kinds), KIND_PENALTY),
        )
        if wanted.shape[1]
    ]
    weights, means, unseen = (np.concatenate(each, axis=-1) for each in zip(*parts, strict=True))
    return Leads((inputs.T @ weights).T, means), unseen


def choose_penalties(inputs: Any, good: Floats) -> Penalties:
    """By the squared error of each lead for unseen rows: the heaviest that is not worse than the best beyond one
    standard error (Breiman and others: Classification and Regression Trees, 1984)."""
    gram, leads = _gram(inputs), _leads(good)
    errors = np.stack([np.square(_ridge(gram, leads, penalty)[2] - leads) for penalty in PENALTIES])
    return Penalties(*(_heaviest(errors[:, :, lead]) for lead in range(LEADS)))


def _heaviest(errors: Floats) -> float:
    """`errors` (penalties, n), of penalties from light to heavy."""
    worse = errors - errors[errors.mean(axis=1).argmin()]
    alike = worse.mean(axis=1) <= worse.std(axis=1) / np.sqrt(errors.shape[1])
    return PENALTIES[int(np.flatnonzero(alike)[-1])]


def drawn(known: NDArray[np.intp]) -> NDArray[np.intp]:
    """Of the rows `known`, those that are fitted on: all, or as many as there is time for."""
    if len(known) <= MOST_ROWS:
        return known
    return np.sort(np.random.default_rng(0).permutation(known)[:MOST_ROWS])


def _leads(good: Floats) -> Floats:
    """(n, 2)."""
    return np.stack([good.mean(axis=1), good[:, -1] - good[:, 0]], axis=1)


def _alike(kinds: Names) -> Floats:
    """(n, K): the logits that each row should have; none where all rows are of one kind."""
    names = np.unique(kinds)
    return SHARPNESS * (
        kinds[:, np.newaxis] == names[np.newaxis, :] if len(names) > 1 else np.zeros((len(kinds), 0))
    )


def _ridge(gram: Floats, wanted: Floats, penalty: float) -> tuple[Floats, Floats, Floats]:
    """How much each row weighs (n, W) for what is wanted (n, W), the means (W,), and what is said of unseen rows."""
    means = wanted.mean(axis=0)
    inverse = _inverse(gram + penalty * np.eye(len(gram)))
    weights = inverse @ (wanted - means)
    return weights, means, wanted - weights / np.diag(inverse)[:, np.newaxis]


def _inverse(matrix: Floats) -> Floats:
    """Of a symmetric positive definite one."""
    with _BLAS.limit(limits=1):
        factor, _ = lapack.dpotrf(matrix, lower=True)
        lower, _ = lapack.dpotri(factor, lower=True)
    lower = np.tril(lower)
    inverse: Floats = lower + np.tril(lower, -1).T
    return inverse


def _gram(inputs: Any) -> Floats:
    """(n, n). Columns that are hardly ever zero are multiplied as a dense matrix, the others as a sparse one."""
    rows = sparse.csc_matrix(inputs)
    full = np.diff(rows.indptr) > rows.shape[0] / 2
    dense, rare = rows[:, full].toarray(), rows[:, ~full].tocsr()
    with _BLAS.limit(limits=1):
        gram: Floats = dense @ dense.T + (rare @ rare.T).toarray()
    return gram

"""Fitting `classifier.doubt`: how far heads can be trusted with prompts of a kind that they have not seen.

Each kind of prompt is left out in turn, and so is each fold of questions, whose kinds were seen. Trust is fitted on
both alike: it should stay where what was learnt holds, and go where it does not. Kinds are the sources, or clusters of
prompts where all come from one source.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.cluster import KMeans
from threadpoolctl import ThreadpoolController

from classifier import lexicon
from classifier.corpus import Outcome
from classifier.doubt import Doubt, trust
from classifier.heads import Penalties, folds_of, judge
from classifier.inputs import Inputs
from classifier.measures import Floats, log_loss
from classifier.router import FEWEST, qualities

CLUSTERS = 5
MET = 2  # prompts that hold a word, from which on it counts as known
BEGINNING = np.array([3.0, 3.0])  # what the slopes are taken to be where little speaks against it
RIDGE = 1e-3

# Threads that wait for one another cost ten times what they save on arrays as small as these.
_BLAS = ThreadpoolController()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Prompts (n) that heads have not seen, what these said of them, and what the answers were worth."""

    kind: str | None  # that was left out; None where a fold was
    learnt: Floats  # (n, T)
    good: Floats  # (n, T)
    usual: Floats  # (T,)
    unknown: Floats  # (n,)

    def tempered(self, slopes: Floats) -> Floats:
        """P(good) (n, T)."""
        tempered: Floats = self.usual + trust(self.unknown, slopes)[:, np.newaxis] * (
            self.learnt - self.usual
        )
        return tempered


def fit_doubt(inputs: Inputs, rows: Sequence[Outcome], penalties: Penalties) -> Doubt:
    """Of heads that are fitted on all the rows, none of them held out."""
    kinds = kinds_of(inputs, rows)
    slopes = fit_slopes(
        [*folds_seen(inputs, rows, kinds, penalties), *kinds_seen(inputs, rows, kinds, penalties)]
    )
    return _acquainted(inputs, qualities(rows), kinds, np.arange(len(rows)), slopes)


def kinds_of(inputs: Inputs, rows: Sequence[Outcome]) -> NDArray[np.str_]:
    """(n,): the source of each row, or the number of its cluster."""
    sources, counts = np.unique([row.source for row in rows], return_counts=True)
    if (counts >= FEWEST).sum() > 1:
        return np.array([row.source for row in rows])
    distinct = len(np.unique(inputs.waves.round(6), axis=0))
    with _BLAS.limit(limits=1):
        found = KMeans(min(CLUSTERS, distinct), n_init=1, random_state=0).fit(inputs.waves)
    return np.array([str(label) for label in found.labels_])


def folds_seen(
    inputs: Inputs, rows: Sequence[Outcome], kinds: NDArray[np.str_], penalties: Penalties
) -> Iterator[Sight]:
    folds = folds_of(rows)
    for held in np.unique(folds):
        yield _sight(inputs, qualities(rows), kinds, folds == held, penalties, None)


def kinds_seen(
    inputs: Inputs, rows: Sequence[Outcome], kinds: NDArray[np.str_], penalties: Penalties
) -> Iterator[Sight]:
    for kind in np.unique(kinds).tolist():
        if (kinds == kind).sum() >= FEWEST and (kinds != kind).any():
            yield _sight(inputs, qualities(rows), kinds, kinds == kind, penalties, kind)


def fit_slopes(sights: Sequence[Sight]) -> Floats:
    """(2,): with the least log loss, prompts of unseen kinds counting as much in all as those of seen ones."""

    def loss(slopes: Floats) -> float:
        losses = [
            np.average(
                [log_loss(sight.tempered(slopes), sight.good) for sight in part],
                weights=[len(sight.good) for sight in part],
            )
            for part in parts
        ]
        return float(np.mean(losses) + RIDGE * np.square(slopes - BEGINNING).sum())

    parts = [part for part in ([s for s in sights if s.kind is None], [s for s in sights if s.kind]) if part]
    bounds = [(None, None), (0.0, None)]
    found: Floats = minimize(loss, BEGINNING, method="L-BFGS-B", bounds=bounds).x
    return found


def _sight(
    inputs: Inputs,
    good: Floats,
    kinds: NDArray[np.str_],
    left_out: NDArray[np.bool_],
    penalties: Penalties,
    kind: str | None,
) -> Sight:
    known, asked = np.flatnonzero(~left_out), np.flatnonzero(left_out)
    doubt = _acquainted(inputs, good, kinds, known, BEGINNING)
    return Sight(
        kind=kind,
        learnt=judge(inputs.tiers, good, known, asked, penalties),
        good=good[asked],
        usual=doubt.usual.astype(np.float64),
        unknown=np.array([doubt.unknown(inputs.found[i]) for i in asked.tolist()]),
    )


def _acquainted(
    inputs: Inputs, good: Floats, kinds: NDArray[np.str_], known: NDArray[np.intp], slopes: Floats
) -> Doubt:
    """With the `known` rows."""
    met = np.zeros(len(lexicon.shipped().hashes), np.intp)
    for row in known.tolist():
        met[np.unique(inputs.found[row].words)] += 1
    means = [good[known[kinds[known] == kind]].mean(axis=0) for kind in np.unique(kinds[known])]
    usual = np.maximum.accumulate(np.mean(means, axis=0))
    return Doubt(met >= MET, usual.astype(np.float32), slopes.astype(np.float32))

"""The heads of the tiers: one line for each kind of prompt, along what the prompt's leads are (`classifier.leads`).

A tier's answer to a prompt that is surely of a kind is good with the logit

    a + b · ease + c · gain

whose a and b are the kind's own, pulled towards those that all kinds share. A prompt that could be of several kinds
has the mean of their lines, by how likely each is.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from threadpoolctl import ThreadpoolController

from classifier import corpus
from classifier.corpus import Outcome
from classifier.leads import LEADS, Leads, Names, Penalties, drawn, fit_leads
from classifier.lines import Lines, along, likely
from classifier.measures import Floats
from classifier.model import rising
from classifier.router import FEWEST

CERTAIN = 1e-3  # how far from 0 and 1 the quality of a tier is taken to be at least
LEAST_SPREAD = 1e-6  # of a lead; what hardly differs tells nothing
MOST_KINDS = 16  # each takes time at every request
# How freely kinds may differ: sizes before one penalty for all, by cross-validation on what is not held out.
KIND_SCALE = 2.0
SLOPE_SCALE = 0.3

# Threads of BLAS that wait for one another cost ten times what they save on vectors as short as these.
_BLAS = ThreadpoolController()


@dataclass(frozen=True, slots=True)
class Heads:
    leads: Leads
    lines: Lines  # (kinds, 1 + leads, T)

    def good(self, inputs: Any) -> Floats:
        """P(good) (n, T) of inputs (n, F)."""
        good: Floats = rising(along(self.lines, self.leads.scores(inputs)).T).T
        return good


def fit_heads(inputs: Any, good: Floats, kinds: Names, by: Penalties) -> Heads:
    """Of answers as `good` as (n, T) to prompts (n, F) of `kinds` (n,)."""
    leads, unseen = fit_leads(inputs, good, kinds, by)
    told, alike = unseen[:, :LEADS], unseen[:, LEADS:]
    shares = likely(alike) if alike.shape[1] else alike
    means, spreads = told.mean(axis=0), np.maximum(told.std(axis=0), LEAST_SPREAD)
    scaled = (told - means) / spreads
    design = np.hstack([scaled, shares * KIND_SCALE, shares * scaled[:, :1] * SLOPE_SCALE])
    lines = np.stack([_lines(fit_head(design, quality, 1.0), shares.shape[1]) for quality in good.T], axis=-1)
    lines[:, 1:] /= spreads[:, np.newaxis]
    lines[:, 0] -= np.einsum("l,klt->kt", means, lines[:, 1:])
    return Heads(leads, lines)


def _lines(head: Any, kinds: int) -> Floats:
    """(kinds, 1 + leads) of one tier: what all kinds share and what each adds."""
    ease, gain = head.coef_[0, :LEADS]
    own, slopes = head.coef_[0, LEADS:].reshape(2, -1)
    shared = np.array([[head.intercept_[0], ease, gain]])
    if not kinds:
        return shared
    lines: Floats = shared + np.stack([KIND_SCALE * own, SLOPE_SCALE * slopes, np.zeros(kinds)], axis=1)
    return lines


def judge(
    inputs: Any, good: Floats, kinds: Names, known: NDArray[np.intp], asked: NDArray[np.intp], by: Penalties
) -> Floats:
    """P(good) (asked, T) by heads fitted on the `known` rows alone."""
    known = drawn(known)
    return fit_heads(inputs[known], good[known], kinds[known], by).good(inputs[asked])


def kinds_told(rows: Sequence[Outcome]) -> Names:
    """(n,): the source of each row, where there are several; rare ones go as one kind."""
    counts = Counter(row.source for row in rows)
    own = {source for source, count in counts.most_common(MOST_KINDS) if count >= FEWEST}
    return np.array([row.source if row.source in own and len(own) > 1 else "" for row in rows])


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


def folds_of(rows: Sequence[Outcome]) -> NDArray[np.intp]:
    """(n,): what is held out counts as one fold more."""
    folds = (corpus.fold(row.question) for row in rows)
    return np.array([corpus.FOLDS if fold is None else fold for fold in folds], np.intp)

"""What own labels are worth: heads of the same kind, fitted on the graded answers themselves and measured on others.

Three ways: cross-validated over folds of questions; with few labels; and on sources that were left out of fitting.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classifier import corpus
from classifier.corpus import Outcome
from classifier.fit import choose_penalty, fit_head, folds_of, inputs_of
from classifier.measures import Floats, apgr
from classifier.model import rising
from classifier.ranking import Compared, compare, gains_by_source
from classifier.refitted import FewLabels, Refitted
from classifier.router import FEWEST, all_tiers, qualities

LABELS = 1500
DRAWS = 5


def refit(rows: Sequence[Outcome], prices: Sequence[float]) -> Refitted:
    """`rows`: all that there are, whatever the artefact was fitted on. Except for few labels, the penalty is chosen by
    more than what each estimate may see: by all rows that are not held out."""
    inputs, _ = inputs_of([row.prompt for row in rows])
    ratio = prices[0] / prices[-1]
    folds, by_source = folds_of(rows), gains_by_source(rows, rows)
    seen = np.flatnonzero(folds != corpus.FOLDS)
    heads = _Heads(inputs, rows, choose_penalty(inputs[seen], [rows[i] for i in seen.tolist()]))
    good = np.zeros((len(rows), len(rows[0].good)))
    for fold in np.unique(folds):
        good[folds == fold] = heads.judge(np.flatnonzero(folds != fold), np.flatnonzero(folds == fold))
    return Refitted(
        cross_validated=compare(good[:, -1] - good[:, 0], rows, by_source, ratio),
        all_tiers=all_tiers(good, qualities(rows), prices, [row.question for row in rows]),
        few_labels=_few(heads, rows) if len(rows) >= 2 * LABELS else None,
        leave_one_source_out=_by_source(heads, rows, by_source, ratio),
    )


@dataclass(frozen=True, slots=True)
class _Heads:
    inputs: Any
    rows: Sequence[Outcome]
    penalty: float

    def judge(self, known: NDArray[np.intp], asked: NDArray[np.intp]) -> Floats:
        """P(good) (asked, tiers) by heads fitted on the `known` rows."""
        quality = qualities(self.rows)[known]
        heads = [fit_head(self.inputs[known], good, self.penalty) for good in quality.T]
        return rising(np.array([head.decision_function(self.inputs[asked]) for head in heads])).T


def _few(heads: _Heads, rows: Sequence[Outcome]) -> FewLabels:
    gain = np.array([row.good[-1] - row.good[0] for row in rows])
    random = np.random.default_rng(0)
    draws = []
    for _ in range(DRAWS):
        order = random.permutation(len(rows))
        known, asked = order[:LABELS], order[LABELS:]
        penalty = choose_penalty(heads.inputs[known], [rows[i] for i in known.tolist()])
        good = replace(heads, penalty=penalty).judge(known, asked)
        draws.append(apgr(good[:, -1] - good[:, 0], gain[asked]))
    return FewLabels(labels=LABELS, apgr=float(np.mean(draws)), draws=tuple(draws))


def _by_source(
    heads: _Heads, rows: Sequence[Outcome], by_source: Floats, ratio: float
) -> dict[str, Compared]:
    sources = np.array([row.source for row in rows])
    found = {}
    for source in sorted(set(sources.tolist())):
        asked = np.flatnonzero(sources == source)
        known = np.flatnonzero(sources != source)
        if len(asked) < FEWEST or not len(known):
            continue
        good = heads.judge(known, asked)
        inside = [rows[i] for i in asked.tolist()]
        found[source] = compare(good[:, -1] - good[:, 0], inside, by_source[asked], ratio)
    return found

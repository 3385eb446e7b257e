"""What own labels are worth: heads of the same kind, fitted on the graded answers themselves and measured on others.

Three ways: cross-validated over folds of questions; with few labels; and on sources that were left out of fitting, with
the doubt that the other sources teach.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier import corpus
from classifier.corpus import CorpusError, Outcome
from classifier.doubting import Sight, fit_slopes, folds_seen, kinds_seen
from classifier.heads import Penalties, choose_penalties, folds_of, judge
from classifier.inputs import Inputs, inputs_of
from classifier.measures import Floats, apgr, calibration_error
from classifier.ranking import compare, gains_by_source
from classifier.refitted import FewLabels, LeftOut, Refitted
from classifier.router import all_tiers, qualities

LABELS = 1500
DRAWS = 5


def refit(rows: Sequence[Outcome], prices: Sequence[float]) -> Refitted:
    """`rows`: all that there are, whatever the artefact was fitted on. Except for few labels, the penalties are chosen
    by more than what each estimate may see: by all rows that are not held out. Raises CorpusError where there are too
    few prompts."""
    folds = folds_of(rows)
    seen = np.flatnonzero(folds != corpus.FOLDS)
    if len(np.unique(folds[seen])) < 2:
        raise CorpusError("too few different prompts to fit on some and measure on others")
    ratio = prices[0] / prices[-1]
    by_source, quality = gains_by_source(rows, rows), qualities(rows)
    inputs = inputs_of([row.prompt for row in rows])
    chosen = choose_penalties(inputs.tiers[seen], quality[seen], folds[seen])
    heads = _Heads(inputs, rows, quality, folds, chosen)
    good = heads.crossed()
    return Refitted(
        cross_validated=compare(good[:, -1] - good[:, 0], rows, by_source, ratio),
        all_tiers=all_tiers(good, quality, prices, [row.question for row in rows]),
        few_labels=_few(heads) if len(rows) >= 2 * LABELS else None,
        leave_one_source_out=_by_source(heads, by_source, ratio),
    )


@dataclass(frozen=True, slots=True)
class _Heads:
    inputs: Inputs
    rows: Sequence[Outcome]
    quality: Floats
    folds: NDArray[np.intp]
    penalties: Penalties

    def judge(self, known: NDArray[np.intp], asked: NDArray[np.intp]) -> Floats:
        """P(good) (asked, tiers) by heads fitted on the `known` rows."""
        return judge(self.inputs.tiers, self.quality, known, asked, self.penalties)

    def crossed(self) -> Floats:
        """P(good) of all rows by heads that have not seen their fold."""
        good = np.zeros(self.quality.shape)
        for fold in np.unique(self.folds):
            good[self.folds == fold] = self.judge(
                np.flatnonzero(self.folds != fold), np.flatnonzero(self.folds == fold)
            )
        return good


def _few(heads: _Heads) -> FewLabels:
    gain = heads.quality[:, -1] - heads.quality[:, 0]
    random = np.random.default_rng(0)
    draws = []
    for _ in range(DRAWS):
        order = random.permutation(len(gain))
        known, asked = order[:LABELS], order[LABELS:]
        penalties = choose_penalties(heads.inputs.tiers[known], heads.quality[known], heads.folds[known])
        good = replace(heads, penalties=penalties).judge(known, asked)
        draws.append(apgr(good[:, -1] - good[:, 0], gain[asked]))
    return FewLabels(labels=LABELS, apgr=float(np.mean(draws)), draws=tuple(draws))


def _by_source(heads: _Heads, by_source: Floats, ratio: float) -> dict[str, LeftOut]:
    """Trust in each is fitted without it."""
    sources = np.array([row.source for row in heads.rows])
    alone = heads.inputs, heads.rows, sources, heads.penalties
    out = list(kinds_seen(*alone))
    known = list(folds_seen(*alone)) if out else []
    return {
        str(sight.kind): _left_out(
            sight,
            [*known, *(other for other in out if other is not sight)],
            [row for row in heads.rows if row.source == sight.kind],
            by_source[sources == sight.kind],
            ratio,
        )
        for sight in out
    }


def _left_out(
    sight: Sight, others: Sequence[Sight], rows: Sequence[Outcome], by_source: Floats, ratio: float
) -> LeftOut:
    good = sight.tempered(fit_slopes(others))
    return LeftOut(
        **msgspec.structs.asdict(compare(good[:, -1] - good[:, 0], rows, by_source, ratio)),
        ece=_error(good, sight.good),
        ece_without_doubt=_error(sight.learnt, sight.good),
    )


def _error(good: Floats, quality: Floats) -> float:
    return float(np.mean([calibration_error(*tier) for tier in zip(good.T, quality.T, strict=True)]))

"""How well scores rank and how well estimates are calibrated. Plain arrays in, plain numbers out.

Rows of requests with the highest score go to the dear tier first. The curve of what that recovers, over the share of
rows sent, holds all figures of a ranking (Ong et al., RouteLLM, arXiv 2406.18665). Rows of equal score are sent
together: a constant score is the random router, and its figures are exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Draw = Callable[[Floats], dict[str, float]]

_BINS = 10
_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Curve:
    """Each array (k,), k distinct scores and a beginning at 0: what is so when these and all higher ones are sent."""

    sent: Floats  # share of the rows
    recovered: Floats  # share of the gap between the tiers; of no use where `gap` is 0
    better: Floats  # share of the rows on which the dear tier is better
    others: Floats  # share of the rows on which it is not
    gap: float  # dear minus cheap quality, the mean of all rows

    @property
    def apgr(self) -> float:
        """Average performance gap recovered, over all shares sent; 0.5 is chance, and stands for no gap."""
        return float(np.trapezoid(self.recovered, self.sent)) if self.gap else 0.5

    @property
    def auc(self) -> float:
        """Chance that a row on which the dear tier is better has a higher score than one on which it is not."""
        if not (self.better[-1] and self.others[-1]):
            return 0.5
        return float(np.trapezoid(self.better, self.others))

    def cpt(self, share: float) -> float:
        """Call-performance threshold: the least share sent that recovers `share` of the gap; 1 where none does."""
        if not self.gap:
            return share
        reached = np.flatnonzero(self.recovered >= share)
        at = int(reached[0]) if len(reached) else len(self.sent) - 1
        if at == 0 or not len(reached):
            return float(self.sent[at])
        before, after = self.recovered[at - 1], self.recovered[at]
        part = (share - before) / (after - before)
        return float(self.sent[at - 1] + part * (self.sent[at] - self.sent[at - 1]))

    def gained(self, sent: float) -> float:
        """Mean quality above that of the cheap tier when this share is sent."""
        return float(np.interp(sent, self.sent, self.recovered)) * self.gap


class Ranked:
    """Scores of rows, sorted once, so that a curve of resampled rows takes one pass."""

    def __init__(self, score: Floats, gain: Floats) -> None:
        """`gain`: dear minus cheap quality; both (n,), n >= 1."""
        self._order = np.argsort(-score, kind="stable")
        ordered = score[self._order]
        self._ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
        self._gain = gain[self._order]

    def curve(self, weight: Floats | None = None) -> Curve:
        """`weight`: how often each row counts, (n,)."""
        weights = np.ones(len(self._gain)) if weight is None else weight[self._order]
        gained, better = weights * self._gain, weights * (self._gain > 0)
        total = weights.sum()
        gap = float(gained.sum() / total)
        return Curve(
            sent=self._share(weights, total),
            recovered=self._share(gained, gained.sum() if gap else 1.0),
            better=self._share(better, max(better.sum(), 1e-300)),
            others=self._share(weights - better, max((weights - better).sum(), 1e-300)),
            gap=gap,
        )

    def _share(self, values: Floats, total: float) -> Floats:
        return np.concatenate([[0.0], np.cumsum(values)[self._ends] / total])


def apgr(score: Floats, gain: Floats) -> float:
    """Of the dear tier's `gain` (n,) by `score` (n,)."""
    return Ranked(score, gain).curve().apgr


def bootstrap(figures: Draw, questions: Sequence[str]) -> dict[str, tuple[float, float]]:
    """95% intervals of what `figures` says of how often each row counts.

    Questions are drawn, not rows, so that two turns of one are not taken for two pieces of evidence.
    """
    _, group = np.unique(np.array(questions), return_inverse=True)
    count = int(group.max()) + 1
    random = np.random.default_rng(0)
    drawn = [
        figures(np.bincount(random.integers(0, count, count), minlength=count)[group].astype(np.float64))
        for _ in range(_RESAMPLES)
    ]
    bounds = {}
    for name in drawn[0]:
        low, high = np.percentile([each[name] for each in drawn], [2.5, 97.5])
        bounds[name] = (float(low), float(high))
    return bounds


def auc(estimate: Floats, truth: Floats) -> float:
    """Area under the ROC curve of P(good); a `truth` above one half counts as good. 0.5 where all are alike."""
    return Ranked(estimate, np.where(truth > 0.5, 1.0, 0.0)).curve().auc


def calibration_error(estimate: Floats, truth: Floats) -> float:
    """Expected calibration error over ten bins of equally many rows: mean |estimate - truth| of the bins' means."""
    order = np.argsort(estimate, kind="stable")
    bins = np.array_split(order, _BINS)
    return float(sum(abs((estimate[b] - truth[b]).sum()) for b in bins) / len(estimate))


def log_loss(estimate: Floats, truth: Floats) -> float:
    """Mean cross-entropy in nats; `truth` may be fractional."""
    p = np.clip(estimate, 1e-6, 1 - 1e-6)
    return float(-(truth * np.log(p) + (1 - truth) * np.log(1 - p)).mean())

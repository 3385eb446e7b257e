"""How well estimates rank and how well they are calibrated. Plain arrays in, plain numbers out."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_BINS = 10
_RESAMPLES = 1000


class Interval(NamedTuple):
    """A figure and its 95% interval."""

    value: float
    low: float
    high: float


def apgr(score: Floats, gain: Floats) -> float:
    """Average performance gap recovered (Ong et al., RouteLLM, arXiv 2406.18665): 0.5 is chance.

    Rows with the highest `score` go to the dear tier first; what share of the whole gain is recovered, on average
    over all shares of rows sent? `gain` is dear minus cheap quality, (n,). Rows of equal score share their ranks.
    0.5 where there is no gain to recover.
    """
    _, group, counts = np.unique(-score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[group]
    total = gain.sum()
    # row r counts at all shares from r/n on, half at its own step (trapezoids)
    return float((gain * (len(gain) - ranks + 0.5)).sum() / (len(gain) * total)) if total else 0.5


def apgr_interval(score: Floats, gain: Floats, questions: list[str]) -> Interval:
    """APGR with a bootstrap over questions, so that two turns of one are not taken for two pieces of evidence."""
    _, group = np.unique(np.array(questions), return_inverse=True)
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    random = np.random.default_rng(0)
    values = []
    for _ in range(_RESAMPLES):
        drawn = np.concatenate([members[i] for i in random.integers(0, len(members), len(members))])
        values.append(apgr(score[drawn], gain[drawn]))
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(apgr(score, gain), float(low), float(high))


def calibration_error(estimate: Floats, truth: Floats) -> float:
    """Expected calibration error over ten bins of equally many rows: mean |estimate - truth| of the bins' means."""
    order = np.argsort(estimate, kind="stable")
    bins = np.array_split(order, _BINS)
    return float(sum(abs((estimate[b] - truth[b]).sum()) for b in bins) / len(estimate))


def log_loss(estimate: Floats, truth: Floats) -> float:
    """Mean cross-entropy in nats; `truth` may be fractional."""
    p = np.clip(estimate, 1e-6, 1 - 1e-6)
    return float(-(truth * np.log(p) + (1 - truth) * np.log(1 - p)).mean())

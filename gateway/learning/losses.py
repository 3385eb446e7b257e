"""What one model has lost against another on the same tasks, with an interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.learning.tasks import Kind

DRAWS, SEED = 2000, 7
INTERVAL = (5, 95)  # percentiles: a 90% interval
_AT_ONCE = 1 << 22  # numbers drawn at a time

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mark:
    """Of one item. perplexity: nats, and of how many tokens; else 1 or 0 for right or wrong, of one."""

    value: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Loss:
    """`model` and `against`: perplexity, or the share that is right. `loss`: by how much `model` is worse, as a share
    of `against`; `low` and `high`: its interval, by drawing items again, for both models the same ones."""

    model: float
    against: float
    loss: float
    low: float
    high: float


def score(kind: Kind, marks: Sequence[Mark]) -> float:
    """Perplexity, or the share that is right."""
    mean = sum(mark.value for mark in marks) / sum(mark.weight for mark in marks)
    return math.exp(mean) if kind == "perplexity" else mean


def paired_loss(kind: Kind, model: Sequence[Mark], against: Sequence[Mark]) -> Loss:
    """Raises ValueError where `against` has nothing right that could be lost.

    Perplexity is per token of `against`: models of other tokenizers are measured on the same characters.
    """
    values, others = (np.array([mark.value for mark in marks]) for marks in (model, against))
    weights = np.array([mark.weight for mark in against])
    if kind != "perplexity" and not others.any():
        raise ValueError(
            "the model that is compared with has nothing right here, so that nothing can be lost"
        )
    once = np.ones((1, len(values)))
    drawn = _drawn(kind, values, others, weights)
    low, high = np.nanpercentile(drawn, INTERVAL)
    mine = [Mark(mark.value, other.weight) for mark, other in zip(model, against, strict=True)]
    return Loss(
        model=score(kind, mine),
        against=score(kind, against),
        loss=float(_relative(kind, once, values, others, weights)[0]),
        low=float(low),
        high=float(high),
    )


def _drawn(kind: Kind, values: Floats, others: Floats, weights: Floats) -> Floats:
    draw = np.random.default_rng(SEED)
    count = len(values)
    step = max(1, _AT_ONCE // count)
    found = []
    for start in range(0, DRAWS, step):
        times = draw.multinomial(count, np.full(count, 1 / count), size=min(step, DRAWS - start))
        found.append(_relative(kind, times.astype(float), values, others, weights))
    return np.concatenate(found)


def _relative(kind: Kind, times: Floats, values: Floats, others: Floats, weights: Floats) -> Floats:
    """[draws, items] times each item was drawn → the loss of each draw; NaN where there was nothing to lose."""
    if kind == "perplexity":
        return np.asarray(np.expm1(times @ (values - others) / (times @ weights)))
    right = times @ others
    return np.where(right > 0, (right - times @ values) / np.where(right > 0, right, 1), np.nan)

"""The weight λ of cost against quality that meets a goal over many requests.

A request is a row: P(good) and expected cost of each tier, the cheapest first. With λ the row goes to the tier with
the most P(good) - λ · cost. As λ grows, cost and quality fall and more rows go to the cheapest tier, so that λ can be
found by halving (Lagrangian relaxation of a choice under a budget; Everett, Operations Research 11, 1963).
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
GoalKind = Literal["cost_share", "quality_share", "small_share", "answer_worth"]

_STEPS = 50


def chosen(good: Floats, cost: Floats, weight: float, floor: float | None = None) -> NDArray[np.intp]:
    """The tier that each row goes to, (n,). Tiers below the floor are left out where another reaches it."""
    worth = good - weight * cost
    if floor is not None:
        reaching = good >= floor
        worth = np.where(reaching | ~reaching.any(axis=1, keepdims=True), worth, -np.inf)
    at: NDArray[np.intp] = worth.argmax(axis=1)
    return at


def solve(good: Floats, cost: Floats, kind: GoalKind, value: float, floor: float | None = None) -> float:
    """λ for requests (n, tiers), n >= 1. The goal is met as exactly as whole requests allow: a cost never exceeds
    its share, a quality or a number of small answers never falls below, where any choice of tiers can do that."""
    if kind == "answer_worth":
        return 1 / value
    spread = cost.max() - cost.min()
    if spread <= 0:
        return 0.0
    least, most = 1e-9 / spread, 1e9 / spread  # P(good) differs by at most 1
    grows = kind != "quality_share"  # whether the goal is met from some λ on, or up to some λ

    def meets(weight: float) -> bool:
        return _MET[kind](good, cost, chosen(good, cost, weight, floor), value)

    if meets(0.0 if grows else most):
        return 0.0 if grows else most
    for _ in range(_STEPS):
        middle = (least * most) ** 0.5
        if meets(middle) == grows:
            most = middle
        else:
            least = middle
    return float(most if grows else least)


def _within_cost(good: Floats, cost: Floats, taken: NDArray[np.intp], share: float) -> bool:
    return bool(_of(cost, taken) <= share * cost[:, -1].sum() * (1 + 1e-12))


def _keeps_quality(good: Floats, cost: Floats, taken: NDArray[np.intp], share: float) -> bool:
    return bool(_of(good, taken) >= share * good[:, -1].sum() * (1 - 1e-12))


def _stays_small(good: Floats, cost: Floats, taken: NDArray[np.intp], share: float) -> bool:
    return bool((taken == 0).mean() >= share - 1e-12)


def _of(values: Floats, taken: NDArray[np.intp]) -> float:
    return float(values[np.arange(len(taken)), taken].sum())


_MET: dict[str, Callable[[Floats, Floats, NDArray[np.intp], float], bool]] = {
    "cost_share": _within_cost,
    "quality_share": _keeps_quality,
    "small_share": _stays_small,
}

"""What a way of answering would have cost and kept on recorded outcomes. Pure.

A strategy says of each sample what its answer costs and whether it is good. Where it has something to choose, a
threshold or a weight of cost, that is chosen on other samples than those that it is measured on. Nothing is decided by
what an answer has cost or been worth before there is one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classifier.confidence import Floats
from classifier.tradeoff import chosen
from gateway.learning.outcomes import FOLDS, Outcomes

SHARES = tuple(np.linspace(0.05, 1.0, 20).tolist())  # of the dearest tier's cost, that may be spent
THRESHOLDS = tuple(np.linspace(0.0, 1.0, 41).tolist())


@dataclass(frozen=True, slots=True)
class Answered:
    """`good` and `cost` of each sample, (N,): their means where a coin decides."""

    good: Floats
    cost: Floats


def always(outcomes: Outcomes, tier: int) -> Answered:
    return Answered(outcomes.good[:, tier], outcomes.cost[:, tier])


def routed(outcomes: Outcomes, good: Floats, weight: float) -> Answered:
    """To the tier with the most good - weight · cost; `good` (N, T): what is believed of each."""
    rows, taken = np.arange(len(outcomes)), chosen(good, outcomes.usual, weight)
    return Answered(outcomes.good[rows, taken], outcomes.cost[rows, taken])


def climbed(outcomes: Outcomes, start: NDArray[np.intp], threshold: float) -> Answered:
    """From the tier `start` (N,) upwards, as long as the confidence in an answer is below the threshold.

    Of an answer that is kept the whole is paid, of one that is not what it had cost by then.
    """
    at, spent = start.copy(), np.zeros(len(outcomes))
    for tier in range(len(outcomes.tiers) - 1):
        climbs = (at == tier) & (outcomes.confidence[:, tier] < threshold)
        spent[climbs] += outcomes.held[climbs, tier]
        at[climbs] += 1
    rows = np.arange(len(outcomes))
    return Answered(outcomes.good[rows, at], spent + outcomes.cost[rows, at])


Setting = Any
Strategy = Callable[[Outcomes, Setting], Answered]


def cascade(outcomes: Outcomes, setting: tuple[int, float]) -> Answered:
    """Every request begins on one tier: the setting is that tier and the threshold."""
    start, threshold = setting
    return climbed(outcomes, np.full(len(outcomes), start, np.intp), threshold)


def router(outcomes: Outcomes, weight: float) -> Answered:
    return routed(outcomes, outcomes.expected, weight)


def both(outcomes: Outcomes, setting: tuple[float, float]) -> Answered:
    """The router says where to begin, confidence whether to stay there."""
    weight, threshold = setting
    return climbed(outcomes, chosen(outcomes.expected, outcomes.usual, weight), threshold)


def worthwhile(outcomes: Outcomes, setting: tuple[int | None, float]) -> Answered:
    """Every request begins on one tier, or (None) where the router says; each answer is weighed against those of dearer
    tiers, as `gateway.stakes` does. The setting is that tier and the weight."""
    start, weight = setting
    rows = np.arange(len(outcomes))
    first = (
        chosen(outcomes.expected, outcomes.usual, weight) if start is None else np.full(len(outcomes), start)
    )
    at, spent = first.copy(), np.zeros(len(outcomes))
    for tier in range(len(outcomes.tiers) - 1):
        worth = outcomes.onward[:, tier, tier + 1 :] - weight * outcomes.dearer[:, tier, tier + 1 :]
        best = worth.argmax(axis=1)
        own = outcomes.confidence[:, tier] - weight * outcomes.rest[:, tier]
        climbs = (at == tier) & (own < worth[rows, best])  # never where nothing can be said: NaN
        spent[climbs] += outcomes.held[climbs, tier]
        at[climbs] = tier + 1 + best[climbs]
    return Answered(outcomes.good[rows, at], spent + outcomes.cost[rows, at])


def cascades(outcomes: Outcomes) -> list[tuple[int, float]]:
    """The settings of `cascade`."""
    return [(start, threshold) for start in range(len(outcomes.tiers)) for threshold in THRESHOLDS]


def weights(outcomes: Outcomes, count: int = 36) -> Sequence[float]:
    """From no regard for cost to nothing but cost."""
    spread = float(np.ptp(outcomes.cost)) or 1.0
    return [0.0, *(np.geomspace(1e-3, 1e4, count) / spread).tolist()]


def unseen(outcomes: Outcomes, strategy: Strategy, settings: Sequence[Setting], share: float) -> Answered:
    """With the settings that do best on the other folds for this share of the dearest tier's cost.

    Where one setting would leave some of it unspent, a coin lets another one have the rest, as chance does in a mix.
    """
    tried = [strategy(outcomes, setting) for setting in settings]
    good, cost = np.array([each.good for each in tried]), np.array([each.cost for each in tried])
    found = Answered(np.zeros(len(outcomes)), np.zeros(len(outcomes)))
    for held in range(FOLDS):
        asked = outcomes.folds == held
        budget = share * outcomes.cost[~asked, -1].sum()
        parts = _parts(good[:, ~asked].sum(axis=1), cost[:, ~asked].sum(axis=1), budget)
        found.good[asked], found.cost[asked] = parts @ good[:, asked], parts @ cost[:, asked]
    return found


def _parts(good: Floats, cost: Floats, budget: float) -> Floats:
    """Of S settings, how much of the requests each gets, (S,): of one that keeps within the budget, and of one above it
    as much as is left for. The cheapest alone, where none keeps within it."""
    parts = np.zeros(len(good))
    within, above = np.flatnonzero(cost <= budget), np.flatnonzero(cost > budget)
    if not len(within):
        parts[cost.argmin()] = 1.0
        return parts
    best = within[np.lexsort((cost[within], -good[within]))[0]]
    one, other = (each.ravel() for each in np.meshgrid(within, above, indexing="ij"))
    part = (budget - cost[one]) / (cost[other] - cost[one])
    value = good[one] + part * (good[other] - good[one])
    if len(value) and value.max() > good[best]:
        at = value.argmax()
        parts[one[at]], parts[other[at]] = 1 - part[at], part[at]
    else:
        parts[best] = 1.0
    return parts


@dataclass(frozen=True, slots=True)
class Measured:
    """`share`: of the dearest tier's cost; `quality`: the share of good answers."""

    share: float
    quality: float


def measured(outcomes: Outcomes, answered: Answered, counts: Floats | None = None) -> Measured:
    """`counts`: how often each sample counts, (N,)."""
    counts = np.ones(len(outcomes)) if counts is None else counts
    whole = float(counts @ outcomes.cost[:, -1])
    return Measured(
        share=float(counts @ answered.cost) / whole if whole else 1.0,
        quality=float(counts @ answered.good / counts.sum()),
    )


def mixed(outcomes: Outcomes, share: float, counts: Floats | None = None) -> float:
    """Quality at this share of the cost when chance sends each request to the cheapest or to the dearest tier."""
    small, large = (measured(outcomes, always(outcomes, tier), counts) for tier in (0, -1))
    if large.share <= small.share:
        return large.quality
    dear = min(max((share - small.share) / (large.share - small.share), 0.0), 1.0)
    return small.quality + dear * (large.quality - small.quality)


def best_mix(outcomes: Outcomes, share: float) -> float:
    """Quality at this share of the cost when chance sends each request to one of the two tiers that suit it best."""
    points = [measured(outcomes, always(outcomes, tier)) for tier in range(len(outcomes.tiers))]
    reached = [point.quality for point in points if point.share <= share] or [points[0].quality]
    between = (
        one.quality + (share - one.share) / (other.share - one.share) * (other.quality - one.quality)
        for one in points
        for other in points
        if one.share <= share < other.share
    )
    return max(*reached, *between, 0.0)


def best_possible(outcomes: Outcomes, share: float) -> Answered:
    """Of one who knows beforehand which answers will be good: the most of them for at most this share of the cost.

    Each good answer is worth the same, so the ones that cost least above the cheapest tier's are bought first; what is
    hopeless stays there.
    """
    good, cost = outcomes.good[:, 0].copy(), outcomes.cost[:, 0].copy()
    wins = np.where(outcomes.good > good[:, np.newaxis], outcomes.cost, np.inf)
    extra, left = wins.min(axis=1) - cost, share * outcomes.cost[:, -1].sum() - cost.sum()
    order = np.argsort(extra, kind="stable")
    bought = order[np.logical_and.accumulate(np.cumsum(extra[order]) <= left)]
    good[bought], cost[bought] = 1.0, cost[bought] + extra[bought]
    return Answered(good, cost)


def closed(outcomes: Outcomes, answered: Answered, share: float, counts: Floats | None = None) -> float:
    """Which part of the gap between chance and `best_possible` is closed at this share of the cost, or at what was
    spent where that is more; 0 where there is none."""
    ours = measured(outcomes, answered, counts)
    share = max(share, measured(outcomes, answered).share)
    chance = mixed(outcomes, share, counts)
    gap = measured(outcomes, best_possible(outcomes, share), counts).quality - chance
    return (ours.quality - chance) / gap if gap > 0 else 0.0

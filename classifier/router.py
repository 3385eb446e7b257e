"""How well an artefact routes: measured on graded answers that it has not been fitted on."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from classifier import Assessment
from classifier.corpus import CorpusError, Outcome
from classifier.measures import Floats, auc, bootstrap, calibration_error, log_loss
from classifier.ranking import COST_SHARE, Compared, Ranking, compare, gains_by_source
from classifier.tradeoff import chosen, solve

Assess = Callable[[str], Assessment]
LLAMA_PRICES = (0.05, 0.15, 0.8)  # per million tokens, as Llama-2 7B, 13B and 70B used to be sold
FEWEST = 20  # rows of a source that figures are given of


class HeadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of P(good) of one tier. `log_loss_of_mean`: of one constant, the rows' own mean."""

    mean: float
    auc: float
    ece: float
    log_loss: float
    log_loss_of_mean: float


class SourceFigures(Compared, frozen=True, kw_only=True):
    ece: float


class AllTiers(msgspec.Struct, frozen=True, kw_only=True):
    """Quality kept at 30% of the dearest tier's cost by choosing among all tiers, as `gateway.routing` would."""

    router: tuple[float, float, float]  # with its interval
    random: float  # the best mix by chance
    oracle: float


class RouterFigures(Ranking, frozen=True, kw_only=True):
    """Pooled figures on top. `left_out`: rows that the artefact was fitted on.

    `auc_within`: the mean over sources, weighted by rows. `ece`: the mean over the tiers.
    """

    rows: int
    left_out: int
    columns: tuple[str, ...]
    ece: float
    auc_within: float
    above_length: tuple[float, float, float]
    tiers: dict[str, HeadFigures]
    all_tiers: AllTiers
    per_source: dict[str, SourceFigures]
    baselines: dict[str, Ranking]


def check_prices(prices: Sequence[float], columns: Sequence[str]) -> None:
    """What routing saves is measured against the dearest one alone. Raises CorpusError."""
    if len(prices) != len(columns):
        raise CorpusError(f"prices: {len(columns)} are needed, one for each of {', '.join(columns)}")
    if (
        not np.isfinite(prices).all()
        or min(prices) < 0
        or sorted(prices) != [*prices]
        or not prices[-1] > prices[0]
    ):
        raise CorpusError(
            f"prices: must rise from {columns[0]} to {columns[-1]}, not {', '.join(f'{p:g}' for p in prices)}"
        )


def measure_router(
    good: Floats,
    rows: Sequence[Outcome],
    known: Sequence[Outcome],
    columns: Sequence[str],
    prices: Sequence[float],
) -> RouterFigures:
    """`good`: P(good) (n, tiers) of `rows`, n >= 1; `known`: all rows there are, for what a source's name tells;
    `columns`: names of the tiers' outcomes; `prices` of the tiers."""
    quality = np.array([row.good for row in rows])
    score, by_source = good[:, -1] - good[:, 0], gains_by_source(rows, known)
    ratio = prices[0] / prices[-1]
    pooled = compare(score, rows, by_source, ratio)
    sources = {
        source: _of_source(np.array(at), good, rows, by_source, ratio)
        for source, at in _members(rows).items()
        if len(at) >= FEWEST
    }
    tiers = {name: _head(good[:, i], quality[:, i]) for i, name in enumerate(columns)}
    counts = [each.rows for each in sources.values()]
    within = [each.router.auc for each in sources.values()]
    return RouterFigures(
        **msgspec.structs.asdict(pooled.router),
        rows=len(rows),
        left_out=len(known) - len(rows),
        columns=tuple(columns),
        ece=float(np.mean([head.ece for head in tiers.values()])),
        auc_within=float(np.average(within, weights=counts)) if within else 0.5,
        above_length=pooled.above_length,
        tiers=tiers,
        all_tiers=all_tiers(good, quality, prices, [row.question for row in rows]),
        per_source=sources,
        baselines=pooled.baselines,
    )


def estimates(assess: Assess, rows: Sequence[Outcome]) -> Floats:
    """P(good), (rows, tiers)."""
    return np.array([list(assess(row.prompt).good.values()) for row in rows])


def qualities(rows: Sequence[Outcome]) -> Floats:
    """What the answers were worth, (rows, tiers)."""
    return np.array([row.good for row in rows])


def _members(rows: Sequence[Outcome]) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        members.setdefault(row.source, []).append(at)
    return dict(sorted(members.items()))


def _of_source(
    at: np.ndarray, good: Floats, rows: Sequence[Outcome], by_source: Floats, ratio: float
) -> SourceFigures:
    inside = [rows[i] for i in at.tolist()]
    compared = compare(good[at, -1] - good[at, 0], inside, by_source[at], ratio)
    quality = qualities(inside)
    errors = [calibration_error(good[at, i], quality[:, i]) for i in range(quality.shape[1])]
    return SourceFigures(**msgspec.structs.asdict(compared), ece=float(np.mean(errors)))


def _head(estimate: Floats, truth: Floats) -> HeadFigures:
    return HeadFigures(
        mean=float(truth.mean()),
        auc=auc(estimate, truth),
        ece=calibration_error(estimate, truth),
        log_loss=log_loss(estimate, truth),
        log_loss_of_mean=log_loss(np.full_like(truth, truth.mean()), truth),
    )


def all_tiers(good: Floats, quality: Floats, prices: Sequence[float], questions: Sequence[str]) -> AllTiers:
    """`good` and `quality` (n, tiers), `prices` of the tiers, `questions` of the rows."""
    cost = np.tile(np.array(prices, np.float64), (len(good), 1))
    every = np.arange(len(good))
    ours, best = (
        quality[every, chosen(by, cost, solve(by, cost, "cost_share", COST_SHARE))] for by in (good, quality)
    )
    dear = quality[:, -1]

    def kept(weight: Floats) -> dict[str, float]:
        return {"kept": float((weight * ours).sum()) / max(float((weight * dear).sum()), 1e-9)}

    low, high = bootstrap(kept, questions)["kept"]
    whole = float(dear.mean())
    return AllTiers(
        router=(kept(np.ones(len(good)))["kept"], low, high),
        random=_mixed(quality.mean(axis=0), np.array(prices), COST_SHARE * prices[-1]) / whole
        if whole
        else 1.0,
        oracle=float(best.mean()) / whole if whole else 1.0,
    )


def _mixed(quality: Floats, price: Floats, budget: float) -> float:
    """The most quality that a mix of two tiers by chance has within the budget; of the cheapest if that is above it."""
    mixes = [float(quality[0])]
    for i in range(len(price)):
        for j in range(len(price)):
            if price[i] <= budget <= price[j] and price[i] < price[j]:
                share = (budget - price[i]) / (price[j] - price[i])
                mixes.append(float(quality[i] + share * (quality[j] - quality[i])))
    return max(mixes)

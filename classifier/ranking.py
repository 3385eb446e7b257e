"""What routing between two tiers keeps of the dear one's quality, by any score, with the scores it is shown beside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from classifier import corpus
from classifier.corpus import Outcome
from classifier.measures import Curve, Floats, Ranked, bootstrap

SMALL_SHARES = (0.5, 0.7, 0.8)  # of the requests, answered by the cheap tier
COST_SHARE = 0.3  # of what the dear tier alone would cost
Bounds = tuple[float, float]


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one score. `intervals` holds those of 95%, by the name of the figure, where they were asked for.

    `quality_kept`: as a share of the dear tier's, with 50, 70 or 80% of the requests on the cheap one ("small 70%"),
    and at 30% of the dear tier's cost ("cost 30%").
    """

    apgr: float
    cpt50: float
    cpt80: float
    auc: float  # of the rows on which the dear tier is better against the others
    quality_kept: dict[str, float]
    intervals: dict[str, Bounds] = {}


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A score on some rows beside the baselines: random, longest prompt first, by the source's name, and an oracle.

    `above_length`: its APGR less that of length, with the interval of the difference.
    """

    rows: int
    router: Ranking
    above_length: tuple[float, float, float]
    baselines: dict[str, Ranking]


def compare(score: Floats, rows: Sequence[Outcome], by_source: Floats, cost_ratio: float) -> Compared:
    """`score` (n,) of `rows`; `by_source` (n,): the gain expected by the source's name; `cost_ratio`: cheap to dear."""
    quality = np.array([row.good for row in rows])
    cheap = quality[:, 0]
    gain = quality[:, -1] - cheap
    length = np.array([float(len(row.prompt)) for row in rows])
    scores = {
        "router": score,
        "random": np.zeros(len(rows)),
        "length": length,
        "source": by_source,
        "oracle": gain,
    }
    measured = {name: _Measured(Ranked(each, gain), cheap, cost_ratio) for name, each in scores.items()}
    intervals = _intervals(measured["router"], measured["length"], [row.question for row in rows])
    rankings = {name: each.ranking(intervals.get(name, {})) for name, each in measured.items()}
    router = rankings.pop("router")
    return Compared(
        rows=len(rows),
        router=router,
        above_length=(router.apgr - rankings["length"].apgr, *intervals["above length"]["apgr"]),
        baselines=rankings,
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    ranked: Ranked
    cheap: Floats  # quality of the cheap tier
    cost_ratio: float

    def figures(self, weight: Floats | None = None) -> dict[str, float]:
        """`weight`: how often each row counts."""
        return _figures(
            self.ranked.curve(weight), float(np.average(self.cheap, weights=weight)), self.cost_ratio
        )

    def ranking(self, intervals: dict[str, Bounds]) -> Ranking:
        found = self.figures()
        kept = {name: found.pop(name) for name in list(found) if name.startswith(("small", "cost"))}
        return Ranking(**found, quality_kept=kept, intervals=intervals)


def _intervals(
    router: _Measured, length: _Measured, questions: Sequence[str]
) -> dict[str, dict[str, Bounds]]:
    """Of both scores' figures, and of the difference of their APGR, all from the same draws."""

    def figures(weight: Floats) -> dict[str, float]:
        ours, theirs = router.figures(weight), length.figures(weight)
        return {
            **{f"router/{name}": value for name, value in ours.items()},
            **{f"length/{name}": value for name, value in theirs.items()},
            "above length/apgr": ours["apgr"] - theirs["apgr"],
        }

    found: dict[str, dict[str, Bounds]] = {}
    for key, bounds in bootstrap(figures, questions).items():
        score, name = key.split("/")
        found.setdefault(score, {})[name] = bounds
    return found


def _figures(curve: Curve, cheap: float, cost_ratio: float) -> dict[str, float]:
    dear = cheap + curve.gap
    at = {f"small {share:.0%}": 1 - share for share in SMALL_SHARES}
    at[f"cost {COST_SHARE:.0%}"] = max(0.0, (COST_SHARE - cost_ratio) / (1 - cost_ratio))
    kept = {name: (cheap + curve.gained(sent)) / dear if dear else 1.0 for name, sent in at.items()}
    return {"apgr": curve.apgr, "cpt50": curve.cpt(0.5), "cpt80": curve.cpt(0.8), "auc": curve.auc, **kept}


def gains_by_source(rows: Sequence[Outcome], known: Sequence[Outcome]) -> Floats:
    """(n,): the mean gain of the row's source among `known` rows of other folds, of all sources where none are."""
    totals: dict[tuple[str, int | None], list[float]] = {}
    for row in known:
        totals.setdefault((row.source, corpus.fold(row.question)), []).append(row.good[-1] - row.good[0])
    overall = float(np.mean([gain for gains in totals.values() for gain in gains])) if totals else 0.0
    means = {
        key: _mean_without(totals, *key, overall)
        for key in {(row.source, corpus.fold(row.question)) for row in rows}
    }
    return np.array([means[row.source, corpus.fold(row.question)] for row in rows])


def _mean_without(
    totals: Mapping[tuple[str, int | None], Sequence[float]], source: str, fold: int | None, overall: float
) -> float:
    others = [gain for key, gains in totals.items() if key[0] == source and key[1] != fold for gain in gains]
    return float(np.mean(others)) if others else overall

"""Measure an artefact on the held-out fifth of the data sets: `python -m classifier.evaluate --data FOLDER`.

`headrace train` does the same for what it has fitted. Fitting is not needed here, so neither is scikit-learn. What
only fitting can tell (cross-validation) is taken over from the artefact.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from classifier import Assessment, artefact, corpus
from classifier.artefact import ArtefactError
from classifier.corpus import CorpusError, Example, Outcome
from classifier.figures import CrossValidated, Figures, TaskFigures, TierFigures, print_table
from classifier.measures import Floats, Interval, apgr, apgr_interval, calibration_error, log_loss
from classifier.model import Classifier

Assess = Callable[[str], Assessment]


def measure(assess: Assess, data: Path, cross_validated: CrossValidated, unseen: float) -> Figures:
    """All figures; `cross_validated` and `unseen` are what fitting has told. Raises CorpusError."""
    outcomes = [row for row in corpus.outcomes(data) if corpus.fold(row.question) is None]
    examples = [row for row in corpus.examples(data) if corpus.fold(row.prompt) is None]
    return Figures(
        tiers=tier_figures(assess, outcomes),
        cross_validated=cross_validated,
        tasks=task_figures(assess, examples, unseen),
        elsewhere=elsewhere(assess, data),
    )


def tier_figures(assess: Assess, rows: Sequence[Outcome]) -> TierFigures:
    """Figures of P(good) on `rows`."""
    good, truth = estimates(assess, rows), qualities(rows)
    gain, expected = truth[:, -1] - truth[:, 0], good[:, -1] - good[:, 0]
    by_tier = {tier: (good[:, i], truth[:, i]) for i, tier in enumerate(corpus.TIERS)}
    return TierFigures(
        rows=len(rows),
        apgr=apgr_interval(expected, gain, [row.question for row in rows]),
        apgr_longest_first=apgr(lengths(rows), gain),
        apgr_hardest_first=apgr(-good[:, 0], gain),
        calibration={tier: calibration_error(*both) for tier, both in by_tier.items()},
        log_loss={tier: log_loss(*both) for tier, both in by_tier.items()},
        log_loss_of_mean={tier: log_loss(np.full_like(y, y.mean()), y) for tier, (_, y) in by_tier.items()},
        mean={tier: float(y.mean()) for tier, (_, y) in by_tier.items()},
    )


def task_figures(assess: Assess, rows: Sequence[Example], unseen: float) -> TaskFigures:
    """Figures of the task on `rows`; our own prompts count apart."""
    right = {row: assess(row.prompt).task == row.task for row in rows}
    public = [row for row in rows if row.source != corpus.EVERYDAY]
    own = [row for row in rows if row.source == corpus.EVERYDAY]
    return TaskFigures(
        rows=len(public),
        accuracy=_share(right[row] for row in public),
        recall={
            task: _share(right[row] for row in public if row.task == task)
            for task in sorted({r.task for r in public})
        },
        everyday_rows=len(own),
        everyday_accuracy=_share(right[row] for row in own),
        accuracy_on_unseen_sources=unseen,
    )


def elsewhere(assess: Assess, data: Path) -> dict[str, tuple[Interval, float]]:
    """APGR on data sets that nothing was fitted on, where they are present; what was trained on is left out."""
    found: dict[str, tuple[Interval, float]] = {}
    if (data / corpus.ALPACA).exists():
        found["AlpacaEval, the same models"] = _ranking(assess, corpus.outcomes(data, corpus.ALPACA))
    if (data / corpus.MIXTRAL).exists():
        seen = {row.question for row in corpus.outcomes(data) if corpus.fold(row.question) is not None}
        rows = [row for row in corpus.pairs(data) if row.question not in seen]
        for source in sorted({row.source for row in rows}):
            found[f"{source}, Mixtral to GPT-4"] = _ranking(
                assess, [row for row in rows if row.source == source]
            )
    return found


def estimates(assess: Assess, rows: Sequence[Outcome]) -> Floats:
    """P(good), (rows, tiers)."""
    return np.array([list(assess(row.prompt).good.values()) for row in rows])


def qualities(rows: Sequence[Outcome]) -> Floats:
    """What the answers were worth, (rows, tiers)."""
    return np.array([row.good for row in rows])


def lengths(rows: Sequence[Outcome]) -> Floats:
    """Characters of the prompts, (rows,)."""
    return np.array([float(len(row.prompt)) for row in rows])


def latency(assess: Assess, texts: Sequence[str]) -> tuple[float, float]:
    """Median and 99th percentile of the seconds that `assess` takes; the first tenth warms up."""
    seconds = [assess(text).seconds for text in texts][len(texts) // 10 :]
    low, high = np.percentile(seconds, [50, 99])
    return float(low), float(high)


def _ranking(assess: Assess, rows: Sequence[Outcome]) -> tuple[Interval, float]:
    good, truth = estimates(assess, rows), qualities(rows)
    gain = truth[:, -1] - truth[:, 0]
    interval = apgr_interval(good[:, -1] - good[:, 0], gain, [row.question for row in rows])
    return interval, apgr(lengths(rows), gain)


def _share(values: Iterable[bool]) -> float:
    flags = list(values)
    return sum(flags) / len(flags) if flags else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Print latency and figures of an artefact."""
    parser = argparse.ArgumentParser(prog="headrace evaluate", description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--artefact", type=Path, default=artefact.SHIPPED, help="folder of the artefact")
    arguments = parser.parse_args(argv)
    try:
        weights, meta = artefact.load(arguments.artefact)
        classifier = Classifier(weights, meta.tiers, meta.tasks)
        known = meta.figures
        figures = measure(
            classifier.assess,
            arguments.data,
            known.cross_validated,
            known.tasks.accuracy_on_unseen_sources,
        )
        prompts = [row.prompt for row in corpus.examples(arguments.data)]
    except (ArtefactError, CorpusError) as error:
        print(f"headrace evaluate: {error}", file=sys.stderr)
        return 2
    print_table(figures)
    for name, texts in (
        ("the data's prompts", prompts),
        ("32,000 characters", ["a few words more, " * 1778] * 500),
    ):
        median, high = latency(classifier.assess, texts)
        print(
            f"{f'milliseconds for {name}: median, 99th percentile':<72} {median * 1e3:.2f}, {high * 1e3:.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

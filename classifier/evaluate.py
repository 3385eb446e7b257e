"""`headrace evaluate router`: how well an artefact routes on graded answers; and the figures that training writes.

Rows that the artefact was fitted on are left out of what is said of it. Scoring needs no scikit-learn; only what own
labels would be worth is found by fitting.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from classifier import artefact, corpus, places
from classifier.artefact import ArtefactError
from classifier.corpus import CorpusError, Example, Outcome
from classifier.figures import TaskFigures, router_pages
from classifier.model import Classifier
from classifier.ranking import Compared, compare, gains_by_source
from classifier.refitted import Refitted
from classifier.router import LLAMA_PRICES, Assess, RouterFigures, check_prices, estimates, measure_router

PAIR_PRICES = (LLAMA_PRICES[0], LLAMA_PRICES[-1])


class Report(RouterFigures, frozen=True, kw_only=True):
    """What stands in the JSON file. `refitted`: null where it was not asked for, or there are too few prompts."""

    prices: tuple[float, ...]
    milliseconds: dict[str, tuple[float, float]]  # median and 99th percentile of one assessment
    refitted: Refitted | None


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


def elsewhere(assess: Assess, data: Path) -> dict[str, Compared]:
    """On data sets that nothing was fitted on, where they are present; what was trained on is left out."""
    found: dict[str, Compared] = {}
    ratio = PAIR_PRICES[0] / PAIR_PRICES[1]
    if (data / corpus.ALPACA).exists():
        rows = corpus.outcomes(data, corpus.ALPACA)
        found["AlpacaEval, the same models"] = _compared(assess, rows, ratio)
    if (data / corpus.MIXTRAL).exists():
        seen = {row.question for row in corpus.outcomes(data) if corpus.fold(row.question) is not None}
        pairs = [row for row in corpus.pairs(data) if row.question not in seen]
        for source in sorted({row.source for row in pairs}):
            rows = [row for row in pairs if row.source == source]
            found[f"{source}, Mixtral to GPT-4"] = _compared(assess, rows, ratio)
    return found


def _compared(assess: Assess, rows: Sequence[Outcome], ratio: float) -> Compared:
    good = estimates(assess, rows)
    return compare(good[:, -1] - good[:, 0], rows, gains_by_source(rows, rows), ratio)


def latency(assess: Assess, texts: Sequence[str]) -> tuple[float, float]:
    """Median and 99th percentile of the seconds that `assess` takes; the first tenth warms up."""
    seconds = [assess(text).seconds for text in texts][len(texts) // 10 :]
    low, high = np.percentile(seconds, [50, 99])
    return float(low), float(high)


def _share(values: Iterable[bool]) -> float:
    flags = list(values)
    return sum(flags) / len(flags) if flags else 0.0


def evaluate(
    files: Sequence[Path],
    folder: Path,
    *,
    columns: Sequence[str] | None = None,
    sources: Sequence[str] = (),
    prices: Sequence[float] | None = None,
    fit: bool = True,
) -> Report:
    """`folder`: of the artefact; `columns`: of the cheap and the dear model, where they are not the artefact's tiers;
    `sources`: only these; `prices` of the tiers; `fit`: see what own labels are worth. Raises CorpusError,
    ArtefactError."""
    weights, meta = artefact.load(folder)
    reference = artefact.load_reference(folder)
    columns = columns or [f"y_{tier}" for tier in meta.tiers]
    prices = prices or (LLAMA_PRICES if len(columns) == len(LLAMA_PRICES) else PAIR_PRICES)
    check_prices(prices, columns)
    known = _of_sources([row for file in files for row in corpus.read_outcomes(file, columns)], sources)
    rows = [row for row in known if not reference.fitted(row.question)]
    if not rows:
        raise CorpusError(
            f"the artefact was fitted on all {len(known)} rows: nothing is left to measure it on"
        )
    classifier = Classifier(weights, meta.tiers, meta.tasks)
    good = estimates(classifier.assess, rows)
    if len(columns) != len(meta.tiers):
        good = good[:, [0, -1]]
    found = measure_router(good, rows, known, columns, prices)
    return Report(
        **msgspec.structs.asdict(found),
        prices=tuple(prices),
        milliseconds=_milliseconds(classifier.assess, rows),
        refitted=_refitted(known, prices) if fit else None,
    )


def _of_sources(rows: Sequence[Outcome], names: Sequence[str]) -> Sequence[Outcome]:
    """Those of these sources, all where none is named. Raises CorpusError for one that there is not."""
    known = {row.source for row in rows}
    for name in names:
        if name not in known:
            raise CorpusError(f"--source: there is no {name}; there are {', '.join(sorted(known))}")
    return [row for row in rows if not names or row.source in names]


def _milliseconds(assess: Assess, rows: Sequence[Outcome]) -> dict[str, tuple[float, float]]:
    texts = {
        "these prompts": [row.prompt for row in rows][:2000],
        "32,000 characters": ["a few words more, " * 1778] * 200,
    }
    return {name: _rounded(latency(assess, each)) for name, each in texts.items()}


def _rounded(seconds: tuple[float, float]) -> tuple[float, float]:
    return round(seconds[0] * 1e3, 3), round(seconds[1] * 1e3, 3)


def _refitted(rows: Sequence[Outcome], prices: Sequence[float]) -> Refitted | None:
    """None where there are too few different prompts."""
    from classifier.refit import refit  # scikit-learn

    try:
        return refit(rows, prices)
    except CorpusError:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Measure how well the router sends prompts to models, on graded answers that it has not been fitted on."""
    options = _parser().parse_args(argv)
    try:
        if options.json is not None:
            places.check_file(options.json)
        report = evaluate(
            options.data,
            options.artefact,
            columns=options.pair,
            sources=options.source,
            prices=options.prices,
            fit=options.fit,
        )
        if options.json is not None:
            options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    except (ArtefactError, CorpusError, OSError) as error:
        print(f"headrace evaluate: {error}", file=sys.stderr)
        return 2
    print(router_pages(report, report.refitted))
    if options.fit and report.refitted is None:
        print("\nThere are too few different prompts to see what own labels would be worth.")
    for name, (median, high) in report.milliseconds.items():
        print(f"\nMilliseconds for {name}: median {median:.2f}, 99th percentile {high:.2f}.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace evaluate router", description=main.__doc__)
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="graded answers, .jsonl or .jsonl.gz",
    )
    add(
        "--pair",
        type=_pair,
        metavar="CHEAP,DEAR",
        help="columns of two models' outcomes (default: the tiers')",
    )
    add("--source", nargs="+", default=(), metavar="NAME", help="only rows of these sources")
    add("--prices", type=numbers, metavar="P,P,...", help="of the tiers or the pair, the cheapest first")
    add(
        "--artefact",
        type=Path,
        default=artefact.SHIPPED,
        metavar="FOLDER",
        help="instead of the one that ships",
    )
    add("--no-fit", dest="fit", action="store_false", help="do not see what own labels would be worth")
    add("--json", type=Path, metavar="OUT", help="write all figures there")
    return parser


def _pair(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if len(set(names)) != 2 or len(names) != 2 or not all(names):
        raise argparse.ArgumentTypeError("must be two different column names with a comma between them")
    return names


def numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError("must be numbers with commas") from None


if __name__ == "__main__":
    sys.exit(main())

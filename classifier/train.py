"""`headrace train`: fit, measure, and write an artefact and its model card.

From a folder of the public data sets it makes the artefact that ships. From files of own graded answers it makes heads
for the tiers that these tell of, beside the task model that ships.
"""

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from classifier import artefact, card, corpus, features, places
from classifier.artefact import ArtefactError, Meta, Reference, Weights
from classifier.corpus import CorpusError, Outcome
from classifier.evaluate import elsewhere, numbers, task_figures
from classifier.figures import Figures, TaskFigures, pages
from classifier.fit import TASKS, fit, fit_own
from classifier.model import Classifier
from classifier.ranking import Compared
from classifier.refit import refit
from classifier.router import LLAMA_PRICES, Assess, check_prices, estimates, measure_router

FEWEST_ROWS = 100


@dataclass(frozen=True, slots=True)
class Trained:
    """The bytes of both files of arrays, and what there is to say of them."""

    weights: bytes
    reference: bytes
    meta: Meta


@dataclass(frozen=True, slots=True)
class _Measured:
    """What the packed weights say, as they will be loaded, and of what."""

    packed: bytes
    assess: Assess
    tiers: tuple[str, ...]
    rows: Sequence[Outcome]
    prices: Sequence[float]
    tasks: TaskFigures
    elsewhere: Mapping[str, Compared]
    data: dict[str, str]


def train(data: Path) -> Trained:
    """From a folder of the public data sets. The same data give the same bytes. Raises CorpusError."""
    rows = corpus.outcomes(data)
    examples = corpus.examples(data)
    weights, unseen = fit(_fitted(rows), [row for row in examples if corpus.fold(row.prompt) is not None])
    packed, assess = _packed(weights, corpus.TIERS)
    held_out = [row for row in examples if corpus.fold(row.prompt) is None]
    return _trained(
        _Measured(
            packed=packed,
            assess=assess,
            tiers=corpus.TIERS,
            rows=rows,
            prices=LLAMA_PRICES,
            tasks=task_figures(assess, held_out, unseen),
            elsewhere=elsewhere(assess, data),
            data=corpus.digests(data),
        )
    )


def train_own(files: Sequence[Path], tiers: Sequence[str], prices: Sequence[float]) -> Trained:
    """From own graded answers: columns `y_TIER` for the `tiers`, the cheapest first. Raises CorpusError."""
    columns = [f"y_{tier}" for tier in tiers]
    rows = [row for file in files for row in corpus.read_outcomes(file, columns)]
    check_prices(prices, tiers)
    fitted = _fitted(rows)
    seen, asked = _questions(fitted), _questions(rows)
    if seen < FEWEST_ROWS or asked - seen < FEWEST_ROWS // 10:
        raise CorpusError(
            f"graded answers to {asked} different prompts are too few; {2 * FEWEST_ROWS} prompts suffice"
        )
    shipped, meta = artefact.load(artefact.SHIPPED)
    packed, assess = _packed(fit_own(fitted, shipped), tuple(tiers))
    return _trained(
        _Measured(
            packed=packed,
            assess=assess,
            tiers=tuple(tiers),
            rows=rows,
            prices=prices,
            tasks=meta.figures.tasks,
            elsewhere={},
            data={file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
        )
    )


def _questions(rows: Sequence[Outcome]) -> int:
    return len({row.question for row in rows})


def save(trained: Trained, out: Path) -> None:
    """The artefact and its model card. Raises OSError."""
    artefact.save(out, trained.weights, trained.reference, trained.meta)
    (out / card.NAME).write_text(
        card.render(trained.meta, artefact.unpack(trained.weights)), encoding="utf-8"
    )


def _fitted(rows: Sequence[Outcome]) -> list[Outcome]:
    return [row for row in rows if corpus.fold(row.question) is not None]


def _packed(weights: Weights, tiers: tuple[str, ...]) -> tuple[bytes, Assess]:
    packed = artefact.pack(weights)
    return packed, Classifier(artefact.unpack(packed), tiers, TASKS).assess


def _trained(measured: _Measured) -> Trained:
    rows, columns = measured.rows, [f"y_{tier}" for tier in measured.tiers]
    held_out = [row for row in rows if corpus.fold(row.question) is None]
    good = estimates(measured.assess, held_out)
    marks = {artefact.mark(row.question) for row in _fitted(rows)}
    reference = artefact.pack_reference(
        Reference(questions=np.array(sorted(marks), np.uint64), estimates=good.astype(np.float32))
    )
    figures = Figures(
        held_out=measure_router(good, held_out, rows, columns, measured.prices),
        refitted=refit(rows, measured.prices),
        tasks=measured.tasks,
        elsewhere=dict(measured.elsewhere),
    )
    meta = Meta(
        format=artefact.FORMAT,
        features=features.VERSION,
        tiers=measured.tiers,
        tasks=TASKS,
        weights=hashlib.sha256(measured.packed).hexdigest(),
        reference=hashlib.sha256(reference).hexdigest(),
        data=measured.data,
        figures=figures,
    )
    return Trained(measured.packed, reference, meta)


def main(argv: Sequence[str] | None = None) -> int:
    """Fit the classifier on graded answers and write its artefact and model card."""
    options = _parser().parse_args(argv)
    try:
        places.check_folder(options.out)
        trained = _train(options)
        save(trained, options.out)
    except (ArtefactError, CorpusError, OSError) as error:
        print(f"headrace train: {error}", file=sys.stderr)
        return 2
    print(pages(trained.meta.figures))
    return 0


def _train(options: argparse.Namespace) -> Trained:
    data, tiers, prices = options.data, options.tiers, options.prices
    if len(data) == 1 and data[0].is_dir():
        if tiers is not None or prices is not None:
            raise CorpusError("--tiers and --prices go with files of graded answers, not with a folder")
        return train(data[0])
    tiers = tiers or corpus.TIERS
    return train_own(data, tiers, prices or (LLAMA_PRICES if len(tiers) == len(LLAMA_PRICES) else ()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace train", description=main.__doc__)
    add = parser.add_argument
    add("--data", type=Path, nargs="+", required=True, metavar="PATH",
        help="files of own graded answers (.jsonl or .jsonl.gz), or the folder of the public data sets")  # fmt: skip
    add("--tiers", type=_names, metavar="NAME,NAME,...",
        help="of the configuration, the cheapest first, with columns y_NAME (default: 7b,13b,70b)")  # fmt: skip
    add("--prices", type=numbers, metavar="P,P,...", help="of the tiers, for the figures at 30%% of the cost")
    add("--out", type=Path, required=True, metavar="FOLDER", help="where the artefact is written")
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if len(names) < 2 or not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError("must be two or more different names with commas")
    return names


if __name__ == "__main__":
    sys.exit(main())

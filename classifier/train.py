"""`headrace train --data FOLDER --out FOLDER`: fit, measure, and write the artefact and its model card."""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from classifier import artefact, card, corpus, features
from classifier.artefact import Meta
from classifier.corpus import CorpusError
from classifier.evaluate import measure
from classifier.figures import print_table
from classifier.fit import TASKS, fit
from classifier.model import Classifier


def train(data: Path) -> tuple[bytes, Meta]:
    """The bytes of the weights and what there is to say of them. The same data give the same. Raises CorpusError."""
    outcomes = [row for row in corpus.outcomes(data) if corpus.fold(row.question) is not None]
    examples = [row for row in corpus.examples(data) if corpus.fold(row.prompt) is not None]
    weights, crossed, unseen = fit(outcomes, examples)
    packed = artefact.pack(weights)
    rounded = artefact.unpack(packed)  # measured as it will be loaded
    figures = measure(Classifier(rounded, corpus.TIERS, TASKS).assess, data, crossed, unseen)
    return packed, Meta(
        format=artefact.FORMAT,
        features=features.VERSION,
        tiers=corpus.TIERS,
        tasks=TASKS,
        weights=hashlib.sha256(packed).hexdigest(),
        data=corpus.digests(data),
        figures=figures,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Fit the classifier on a folder of data sets and write its artefact and model card."""
    parser = argparse.ArgumentParser(prog="headrace train", description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder for the artefact")
    arguments = parser.parse_args(argv)
    try:
        packed, meta = train(arguments.data)
        artefact.save(arguments.out, packed, meta)
        (arguments.out / card.NAME).write_text(card.render(meta), encoding="utf-8")
    except (CorpusError, OSError) as error:
        print(f"headrace train: {error}", file=sys.stderr)
        return 2
    print_table(meta.figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())

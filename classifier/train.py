"""`headrace train --data FOLDER --out FOLDER`: fit, measure, and write the artefact and its model card."""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from classifier import artefact, card, corpus, features
from classifier.artefact import Meta, Reference
from classifier.corpus import CorpusError
from classifier.evaluate import estimates, measure
from classifier.figures import print_table
from classifier.fit import TASKS, fit
from classifier.model import Classifier


@dataclass(frozen=True, slots=True)
class Trained:
    """The bytes of both files of arrays, and what there is to say of them."""

    weights: bytes
    reference: bytes
    meta: Meta


def train(data: Path) -> Trained:
    """The same data give the same bytes. Raises CorpusError."""
    outcomes = corpus.outcomes(data)
    fitted = [row for row in outcomes if corpus.fold(row.question) is not None]
    held_out = [row for row in outcomes if corpus.fold(row.question) is None]
    examples = [row for row in corpus.examples(data) if corpus.fold(row.prompt) is not None]
    weights, crossed, unseen = fit(fitted, examples)
    packed = artefact.pack(weights)
    assess = Classifier(artefact.unpack(packed), corpus.TIERS, TASKS).assess  # as it will be loaded
    reference = artefact.pack_reference(
        Reference(
            questions=np.unique(np.array([artefact.mark(row.question) for row in fitted], np.uint64)),
            estimates=estimates(assess, held_out).astype(np.float32),
        )
    )
    return Trained(
        weights=packed,
        reference=reference,
        meta=Meta(
            format=artefact.FORMAT,
            features=features.VERSION,
            tiers=corpus.TIERS,
            tasks=TASKS,
            weights=hashlib.sha256(packed).hexdigest(),
            reference=hashlib.sha256(reference).hexdigest(),
            data=corpus.digests(data),
            figures=measure(assess, data, crossed, unseen),
        ),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Fit the classifier on a folder of data sets and write its artefact and model card."""
    parser = argparse.ArgumentParser(prog="headrace train", description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder for the artefact")
    arguments = parser.parse_args(argv)
    try:
        trained = train(arguments.data)
        artefact.save(arguments.out, trained.weights, trained.reference, trained.meta)
        (arguments.out / card.NAME).write_text(card.render(trained.meta), encoding="utf-8")
    except (CorpusError, OSError) as error:
        print(f"headrace train: {error}", file=sys.stderr)
        return 2
    print_table(trained.meta.figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`headrace calibrate`: grade the tiers' answers to a sample, and learn when confidence in them can be trusted."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.arguments import add_source, load

if TYPE_CHECKING:
    from gateway.cli.arguments import Commands
    from gateway.config import Config
    from gateway.learning.recordings import Book, Recording
    from gateway.learning.samples import Sample

RECORDINGS = Path("calibration.jsonl")
OUT = Path("calibration.json")


def add(commands: "Commands") -> None:
    parser = commands.add_parser(
        "calibrate", help="grade the tiers' answers to a sample, and learn when to trust them"
    )
    add_source(parser)
    parser.add_argument(
        "--sample",
        type=Path,
        metavar="FILE",
        help="prompts with checkers, one JSON object a line; without it only what was recorded before is used",
    )
    parser.add_argument(
        "--recordings",
        type=Path,
        metavar="FILE",
        default=RECORDINGS,
        help="graded answers without their text, kept from run to run (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", default=OUT, help="the calibration (default: %(default)s)"
    )
    parser.add_argument(
        "--tier", action="append", metavar="NAME", help="ask this tier alone; may be given several times"
    )
    parser.add_argument(
        "--judge", metavar="TIER", help="whom checkers of that kind ask (default: the dearest)"
    )
    parser.add_argument(
        "--parallel", type=_parallel, default=32, metavar="N", help="answers at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--outcomes",
        type=Path,
        metavar="FILE",
        help="also write the sample's prompts with every tier's outcome there, for `headrace train --data`",
    )
    parser.add_argument(
        "--router",
        type=Path,
        metavar="FOLDER",
        help="also train a router of your own on the sample, for `classifier:`, and calibrate for use with it",
    )
    parser.add_argument("--answers", type=Path, metavar="FILE", help="also write every answer's text there")
    parser.set_defaults(command=run)


def _parallel(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 256):
        raise argparse.ArgumentTypeError("must be a whole number from 1 to 256")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Raises ValueError, OSError."""
    from classifier import calibration
    from gateway.learning import samples
    from gateway.learning.calibrating import calibrate
    from gateway.learning.recorder import present
    from gateway.learning.recordings import Book
    from gateway.learning.report import report

    config = load(options)
    asked = [] if options.sample is None else samples.load(options.sample)
    for name in ("outcomes", "router"):
        if getattr(options, name) is not None and not asked:
            raise ValueError(f"--{name}: needs the --sample, as recordings hold no prompts")
    _check_places(options, config)
    known = calibration.load(options.out) if options.out.exists() else None
    with Book(options.recordings) as book:
        if asked and not _record(options, config, asked, book):
            return 1
        recordings: Sequence[Recording] = present(config, book.recordings)
    if not recordings:
        raise ValueError(
            f"{options.recordings}: holds no answer of this configuration's models; name a --sample"
        )
    if options.outcomes is not None:
        samples.save_outcomes(options.outcomes, asked, recordings)
    if options.router is not None:
        recordings = _route(options.router, config, asked, recordings)
    found = calibrate(recordings, known)
    calibration.save(options.out, found)
    print("\n".join(report(recordings, config.tiers, found)))
    judging = any(rule.judges for each in found.models for rule in each.rules)
    use = (
        f"a gateway judges by it with `calibration: {options.out}`" if judging else "no rule of it judges yet"
    )
    print(f"\n{options.out} is written; {use}.")
    return 0


def _check_places(options: argparse.Namespace, config: "Config") -> None:
    """What would be in vain is told before hours of answers. Raises ValueError, OSError."""
    from classifier import places
    from classifier.router import check_prices

    for path in (options.recordings, options.out, options.outcomes, options.answers):
        if path is not None:
            places.check_file(path)
    if options.router is not None:
        places.check_folder(options.router)
        check_prices(_prices(config), [tier.name for tier in config.tiers])


def _prices(config: "Config") -> list[float]:
    return [tier.price.input + tier.price.output for tier in config.tiers]


def _route(
    folder: Path, config: "Config", asked: "Sequence[Sample]", recordings: "Sequence[Recording]"
) -> "Sequence[Recording]":
    """Trains a router into the folder; what it says of a prompt that it has not seen stands in the recordings then.

    Raises ValueError for too few samples.
    """
    import tempfile

    from classifier.train import save, train_own
    from gateway.learning import prompts, samples

    tiers = [tier.name for tier in config.tiers]
    with tempfile.TemporaryDirectory() as place:
        outcomes = Path(place) / "outcomes.jsonl"
        samples.save_outcomes(outcomes, samples.answered(asked, recordings, tiers), recordings)
        save(train_own([outcomes], tiers, _prices(config)), folder)
    print(f"{folder} is written, with its model card; a gateway routes by it with `classifier: {folder}`.")
    return prompts.reassessed(recordings, {each.digest: each.words for each in asked}, tiers)


def _record(options: argparse.Namespace, config: "Config", asked: "Sequence[Sample]", book: "Book") -> bool:
    """False where an engine would not run; it has been told why. Raises ValueError for a tier that there is not."""
    import asyncio

    from tqdm import tqdm

    from backends.backend import BackendError
    from backends.supervisor import EngineStartError
    from classifier.model import Classifier
    from gateway.cli.models import pull_missing
    from gateway.learning.recorder import Errand, missing, record

    names = [tier.name for tier in config.tiers]
    tiers = _known("--tier", options.tier or names, names)
    [judge] = _known("--judge", [options.judge or names[-1]], names)
    classifier = Classifier.load(Path(config.classifier) if config.classifier is not None else None)
    pull_missing(
        [engine.model for tier in config.tiers if tier.name in {*tiers, judge} for engine in tier.engines]
    )
    with _telling(options.answers) as tell:
        errand = Errand(
            config=config, samples=asked, tiers=tiers, judge=judge, parallel=options.parallel, tell=tell
        )
        with tqdm(total=missing(errand, book), unit=" answers", disable=None) as bar:
            try:
                asyncio.run(record(errand, book, classifier.assess, bar.update))
            except (EngineStartError, BackendError) as error:
                print(
                    f"{error}\n{options.recordings} keeps what was answered: run it again to go on",
                    file=sys.stderr,
                )
                return False
    return True


def _known(option: str, wanted: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    from gateway.strictyaml import nearest

    for name in wanted:
        if name not in names:
            raise ValueError(f"{option}: there is no tier {name}; {nearest(name, names)}")
    return wanted


@contextmanager
def _telling(path: Path | None) -> Iterator["Callable[[Sample, str, str], None]"]:
    """Writes answers into the file as they come."""
    if path is None:
        yield lambda sample, tier, text: None
        return
    with path.open("a", encoding="utf-8") as file:

        def tell(sample: "Sample", tier: str, text: str) -> None:
            told = {"sample": sample.digest, "set": sample.set, "tier": tier, "text": text}
            print(json.dumps(told), file=file, flush=True)

        yield tell

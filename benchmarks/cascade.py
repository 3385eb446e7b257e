"""What a cascade keeps of the largest model's quality, on recorded answers of the laptop preset's three models.

Recorded once, by the digest of the task, without prompts and answers; a full run goes on where the recordings end.
With --quick, what is recorded is replayed, and every twentieth task is put to the engines again, by a gateway that
holds answers back and by one that judges whole answers. Of each set of tasks only tiers with 30 good answers take part,
and the dearest. No strategy is measured on a task that its rules, weights or thresholds were chosen on.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from benchmarks import sets, waiting
from benchmarks.report import Report, Row, arguments, machine, publish
from classifier import Task
from classifier.confidence import AFTER, WORTH_ASKING, Floats
from classifier.measures import auc, bootstrap
from classifier.model import Classifier
from gateway.config import Config
from gateway.configfile import load_preset
from gateway.learning import prompts, recordings
from gateway.learning.outcomes import Outcomes, Verdicts, outcomes, terms, worth_judging
from gateway.learning.prospecting import foreseen, seen_through
from gateway.learning.recorder import Errand, record
from gateway.learning.recordings import Book, Recording
from gateway.learning.samples import Sample
from gateway.learning.strategies import (
    THRESHOLDS,
    Answered,
    always,
    best_mix,
    best_possible,
    both,
    cascade,
    cascades,
    closed,
    measured,
    mixed,
    router,
    unseen,
    weights,
    worthwhile,
)

RECORDINGS = Path(__file__).parent / "recordings" / "laptop.jsonl"
HALF = 0.5  # of what the largest tier alone costs
WANTED = 0.40  # of the gap between chance and an oracle
HOLD_TOKENS = 32
AGAIN = 20  # one in so many is run again


def main() -> None:
    options = _options()
    config = load_preset("laptop")
    tasks = {each.digest: each for each in sets.everything()}
    if not options.quick:
        _record(config, list(tasks.values()), RECORDINGS)
    words = {digest: task.words for digest, task in tasks.items()}
    known = prompts.reassessed(recordings.load(RECORDINGS), words, [tier.name for tier in config.tiers])
    verdicts = {
        tier.name: Verdicts([each for each in known if each.tier == tier.name]) for tier in config.tiers
    }
    rows = []
    for name in sorted({each.set for each in known}):
        rows += of_set(name, [each for each in known if each.set == name], config, verdicts)
    rows += aucs(verdicts)
    if not options.still:
        rows += _live(config, known, tasks)
    publish(Report(name="cascade", machine=machine(), rows=rows), options.json)


def _options() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.add_argument("--still", action="store_true", help="run nothing again")
    return parser.parse_args()


def _record(config: Config, tasks: Sequence[Sample], path: Path) -> None:
    names = [tier.name for tier in config.tiers]
    errand = Errand(config=config, samples=tasks, tiers=names, judge=names[-1])
    with Book(path) as book:
        asyncio.run(record(errand, book, Classifier.load().assess, lambda: None))


def of_set(
    name: str,
    known: Sequence[Recording],
    config: Config,
    verdicts: dict[str, Verdicts],
) -> list[Row]:
    names = worth_judging(known, [tier.name for tier in config.tiers])
    prices = {tier.name: tier.price for tier in config.tiers if tier.name in names}
    held = outcomes(known, prices, verdicts, terms("hold", HOLD_TOKENS))
    if len(names) < 2 or len(held) < 50:
        print(f"{name}: {len(held)} tasks that {' and '.join(names)} have answered: too few to compare")
        return []
    held = foreseen(held)
    ended = outcomes(known, prices, verdicts, terms("end", HOLD_TOKENS))
    perfect = {
        f"a perfect judge of {HOLD_TOKENS} tokens": seen_through(held),
        "a perfect judge of whole answers": seen_through(ended),
    }
    _print_curve(name, held, ended, perfect)
    ours = _strategies(held, ended, HALF)["router + cascade"]
    most = {**_judged(perfect, HALF), "oracle": best_possible(held, HALF)}
    return _at_half(name, held, ours, most)


def _strategies(held: Outcomes, ended: Outcomes, share: float) -> dict[str, Answered]:
    """For at most this share of the cost."""
    found, finely = weights(held), weights(held, 120)
    pairs = [(weight, threshold) for weight in found[::3] for threshold in THRESHOLDS[::2]]
    return {
        "prompt router": unseen(held, router, finely, share),
        "cascade": unseen(held, cascade, cascades(held), share),
        "cascade, judged at the end": unseen(ended, cascade, cascades(ended), share),
        "cascade, weighed by worth": unseen(held, worthwhile, _starts(held), share),
        "router + cascade, threshold": unseen(held, both, pairs, share),
        "router + cascade": unseen(held, worthwhile, [(None, weight) for weight in finely], share),
    }


def _judged(perfect: dict[str, Outcomes], share: float) -> dict[str, Answered]:
    """What is possible for judges: those who are never wrong, over whatever begins each request best."""
    return {
        what: unseen(of, worthwhile, [*_starts(of), *((None, weight) for weight in weights(of))], share)
        for what, of in perfect.items()
    }


def _starts(of: Outcomes) -> list[tuple[int, float]]:
    """The settings of `worthwhile` where every request begins on the same tier."""
    return [(start, weight) for start in range(len(of.tiers)) for weight in weights(of)]


def _print_curve(name: str, held: Outcomes, ended: Outcomes, perfect: dict[str, Outcomes]) -> None:
    """Quality and cost, each with the interval of the quality."""
    print(
        f"\n{name}: {len(held)} tasks, tiers {', '.join(held.tiers)}; cost: of that of {held.tiers[-1]} alone"
    )
    for number, tier in enumerate(held.tiers):
        _print_line(f"always {tier}", held, always(held, number))
    for share in (0.35, HALF, 0.65, 0.8):
        print(f"  for {share:.0%} of the cost")
        for what, answered in {**_strategies(held, ended, share), **_judged(perfect, share)}.items():
            _print_line(what, held, answered)
        _print_line("oracle", held, best_possible(held, share))


def _print_line(what: str, of: Outcomes, answered: Answered) -> None:
    found = measured(of, answered)
    bounds = bootstrap(lambda counts: {"q": measured(of, answered, counts).quality}, of.samples)["q"]
    chance, best = mixed(of, found.share), best_mix(of, found.share)
    print(
        f"    {what:33} cost {found.share:6.1%}  good {found.quality:6.1%} ({bounds[0]:.1%} to {bounds[1]:.1%})"
        f"  by chance at this cost {chance:6.1%}, among all tiers {best:6.1%}"
    )


def _at_half(name: str, held: Outcomes, answered: Answered, most: dict[str, Answered]) -> list[Row]:
    """`most`: what is possible, by what would do it."""

    def figures(counts: Floats) -> dict[str, float]:
        ours = measured(held, answered, counts)
        chance = mixed(held, ours.share, counts)
        return {
            "ratio": ours.quality / chance if chance else 1.0,
            "closed": closed(held, answered, HALF, counts),
        }

    found, bounds = figures(np.ones(len(held))), bootstrap(figures, held.samples)
    ours = measured(held, answered)
    low, high = bounds["closed"]
    return [
        Row(
            case=f"quality kept at half cost: {name}",
            ours=ours.quality,
            peer=mixed(held, ours.share),
            peer_name="random mix at the same cost",
            unit="good answers",
            ratio=found["ratio"],
            interval=bounds["ratio"],
            details={
                "cost": f"{ours.share:.1%}",
                "tasks": len(held),
                "tiers": " ".join(held.tiers),
                "best mix of any two tiers": f"{best_mix(held, ours.share):.1%}",
            },
        ),
        Row(
            case=f"oracle gap closed: {name}",
            ours=found["closed"],
            peer=WANTED,
            peer_name="wanted",
            unit="of the gap",
            ratio=found["closed"] / WANTED,
            interval=(low / WANTED, high / WANTED),
            details={what: f"{measured(held, each).quality:.1%} good" for what, each in most.items()},
        ),
    ]


def aucs(verdicts: dict[str, Verdicts]) -> list[Row]:
    """How well confidence tells the good answers of a task, by rules that have not seen them."""
    rows = []
    for tier, own in verdicts.items():
        for task in get_args(Task):
            for after in (*AFTER, None):
                asked, told = own.estimates(task, after)
                good = np.array([float(each.good) for each in asked])
                if len(asked) and 0 < good.sum() < len(good):
                    rows.append(_auc(f"AUC {tier} {task} {after or 'end'}", asked, told, good))
    return rows


def _auc(case: str, asked: Sequence[Recording], told: Floats, good: Floats) -> Row:
    def figures(counts: Floats) -> dict[str, float]:
        drawn = np.repeat(np.arange(len(good)), counts.astype(int))
        return {"auc": auc(told[drawn], good[drawn])}

    found, (low, high) = auc(told, good), bootstrap(figures, [each.sample for each in asked])["auc"]
    return Row(
        case=case,
        ours=found,
        peer=WORTH_ASKING,
        peer_name="least that judges",
        unit="AUC",
        ratio=found / WORTH_ASKING,
        interval=(low / WORTH_ASKING, high / WORTH_ASKING),
        details={"answers": len(good), "good": int(good.sum())},
    )


def _live(config: Config, known: Sequence[Recording], tasks: dict[str, Sample]) -> list[Row]:
    """Some of it again: the same outcomes, and how long a client waits for the first text."""
    again = [each for each in {r.sample: r for r in known}.values() if each.sample in tasks][::AGAIN]
    asked = [tasks[each.sample] for each in again]
    if not asked:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.jsonl"
        _record(config, asked, path)
        fresh = {(each.sample, each.tier): each.good for each in recordings.load(path)}
    pairs = [
        (each.good, fresh[each.sample, each.tier]) for each in known if (each.sample, each.tier) in fresh
    ]
    same = sum(one == other for one, other in pairs) / len(pairs)
    agreement = Row(
        case="recorded outcomes come again", ours=same, peer=1.0, peer_name="all of them", unit="of the outcomes",
        ratio=same, details={"answers": len(pairs)},
    )  # fmt: skip
    return [agreement, *waiting.rows(asked)]


if __name__ == "__main__":
    main()

"""What a calibration is worth, for people: its rules, and the quality that a cascade keeps at what cost."""

from collections.abc import Iterator, Sequence

from classifier.calibration import Calibrations
from classifier.confidence import WORTH_ASKING
from gateway.config import Tier
from gateway.learning.outcomes import Outcomes, Verdicts, outcomes, right, terms, worth_judging
from gateway.learning.prospecting import foreseen
from gateway.learning.recordings import Recording
from gateway.learning.strategies import (
    Answered,
    always,
    best_possible,
    cascade,
    measured,
    unseen,
    weights,
    worthwhile,
)

HOLD_TOKENS = 32
THRESHOLDS = (0.2, 0.35, 0.5, 0.65, 0.8)
SHARES = (0.35, 0.5, 0.65, 0.8)


def report(recordings: Sequence[Recording], tiers: Sequence[Tier], found: Calibrations) -> list[str]:
    """A line each. `recordings`: those of the weights that `tiers` run now."""
    verdicts = {tier.name: Verdicts(_of(recordings, tier.name)) for tier in tiers}
    lines = list(_rules(recordings, tiers, found))
    for name in sorted({each.set for each in recordings}):
        own = [each for each in recordings if each.set == name]
        lines += ["", *_set(name, own, tiers, verdicts)]
    return lines


def _rules(recordings: Sequence[Recording], tiers: Sequence[Tier], found: Calibrations) -> Iterator[str]:
    yield f"{'tier':12} {'task':14} {'tokens':>7} {'answers':>8} {'good':>6} {'AUC':>6} {'error':>6}"
    for tier in tiers:
        own = _of(recordings, tier.name)
        calibration = found.of(own[0].model, own[0].weights) if own else None
        if calibration is None or not calibration.rules:
            yield f"{tier.name:12} no rule: too few good or bad answers of any task ({len(own)} answers)"
            continue
        for rule in calibration.rules:
            after = "end" if rule.after is None else str(rule.after)
            silent = "" if rule.judges else f"  does not judge: AUC below {WORTH_ASKING}"
            yield (
                f"{tier.name:12} {rule.task:14} {after:>7} {rule.answers:8} {rule.good:6} {rule.auc:6.3f} "
                f"{rule.calibration_error:6.3f}{silent}"
            )


def _set(
    name: str, recordings: Sequence[Recording], tiers: Sequence[Tier], verdicts: dict[str, Verdicts]
) -> Iterator[str]:
    """Confidence in an answer is that of rules which have not seen it."""
    there = right(recordings)
    names = worth_judging(recordings, [tier.name for tier in tiers if tier.name in there])
    prices = {tier.name: tier.price for tier in tiers if tier.name in names}
    held = foreseen(outcomes(recordings, prices, verdicts, terms("hold", HOLD_TOKENS)))
    ended = outcomes(recordings, prices, verdicts, terms("end", HOLD_TOKENS))
    told = ", ".join(f"{tier} {there[tier]} good" for tier in there)
    yield f"{name}: {len(held)} samples answered by {' and '.join(names)} ({told})"
    if not len(held) or not held.cost[:, -1].sum():
        yield "nothing to compare: no common samples, or no prices"
        return
    yield f"{'':32} {'cost':>6} {'good':>6}    (cost: of that of {names[-1]} alone)"
    for number, tier in enumerate(names):
        yield _line(f"always {tier}", held, always(held, number))
    for start, tier in enumerate(names[:-1]):
        for when, of in (("hold", held), ("end", ended)):
            for threshold in THRESHOLDS:
                yield _line(
                    f"from {tier}, {when}, threshold {threshold}", of, cascade(of, (start, threshold))
                )
    for share in SHARES:
        found = unseen(held, worthwhile, [(None, weight) for weight in weights(held)], share)
        yield _line(f"weighed, for {share:.0%} of the cost", held, found)
    yield _line("oracle", held, best_possible(held, 1.0))


def _line(what: str, of: Outcomes, answered: Answered) -> str:
    found = measured(of, answered)
    return f"{what:32} {found.share:6.1%} {found.quality:6.1%}"


def _of(recordings: Sequence[Recording], tier: str) -> list[Recording]:
    return [each for each in recordings if each.tier == tier]

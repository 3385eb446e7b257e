"""From recordings to a calibration: the rules of each tier, with which a gateway judges its answers."""

from collections.abc import Iterable, Sequence

from classifier.calibration import Calibration, Calibrations
from classifier.confide import Graded, fit
from classifier.confidence import Rule
from gateway.learning.recordings import Recording


def rules(recordings: Iterable[Recording]) -> tuple[Rule, ...]:
    """Of answers of one model."""
    return fit([_graded(each) for each in recordings])


def calibrate(recordings: Sequence[Recording], known: Calibrations | None = None) -> Calibrations:
    """One calibration for each model and weight format of the recordings that has enough answers for some rule; of
    `known`, those of other models stay."""
    found: dict[tuple[str, str], Calibration] = {}
    if known is not None:
        found = {(each.model, each.weights): each for each in known.models}
    for model, weights in sorted({(each.model, each.weights) for each in recordings}):
        own = [each for each in recordings if (each.model, each.weights) == (model, weights)]
        found.pop((model, weights), None)
        if fitted := rules(_one_tier(own)):
            found[model, weights] = Calibration(model=model, weights=weights, rules=fitted)
    return Calibrations(models=tuple(found.values()))


def _one_tier(recordings: Sequence[Recording]) -> list[Recording]:
    """Where several tiers run one model, the same answer counts once."""
    return list({each.sample: each for each in recordings}.values())


def _graded(recording: Recording) -> Graded:
    return Graded(
        task=recording.task,
        trace=recording.trace,
        finish=recording.finish,
        prompt=recording.expected,
        good=recording.good,
    )

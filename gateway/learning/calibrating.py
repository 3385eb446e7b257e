"""From recordings to a calibration: what a gateway judges answers by, and what it knows of the tiers above."""

from collections.abc import Sequence

from classifier.calibration import Calibration, Calibrations
from gateway.learning.fitting import rules
from gateway.learning.prospecting import prospects
from gateway.learning.recordings import Recording


def calibrate(recordings: Sequence[Recording], known: Calibrations | None = None) -> Calibrations:
    """One calibration for each model and weight format of the recordings that has enough answers for some rule; of
    `known`, those of other models stay."""
    seen = prospects(recordings)
    found: dict[tuple[str, str], Calibration] = {}
    if known is not None:
        found = {(each.model, each.weights): each for each in known.models}
    for model, weights in sorted({(each.model, each.weights) for each in recordings}):
        own = [each for each in recordings if (each.model, each.weights) == (model, weights)]
        found.pop((model, weights), None)
        if fitted := rules(_one_tier(own)):
            found[model, weights] = Calibration(
                model=model, weights=weights, rules=fitted, prospects=seen.get((model, weights), ())
            )
    return Calibrations(models=tuple(found.values()))


def _one_tier(recordings: Sequence[Recording]) -> list[Recording]:
    """Where several tiers run one model, the same answer counts once."""
    return list({each.sample: each for each in recordings}.values())

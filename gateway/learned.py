"""What a configuration has learnt, and whether it fits: its classifier and its calibration."""

from collections.abc import Collection, Iterator
from pathlib import Path

from classifier import calibration
from classifier.model import Classifier
from gateway.config import Config
from gateway.desk import Desk
from gateway.live import everybody


def unknown(config: Config, known: Collection[str]) -> str | None:
    """What it means that the classifier has estimates of the `known` tiers only; None where it has them of all."""
    strange = [tier.name for tier in config.tiers if tier.name not in known]
    if not strange:
        return None
    told = f"the classifier knows {', '.join(known)}, not {', '.join(strange)}"
    if len(strange) == len(config.tiers):
        return f"{told}: requests for auto go to the cheapest tier"
    return f"{told}: requests for auto go there only where other tiers fail, or their answers are not good enough"


def checked(config: Config) -> Iterator[str]:
    """What is not wrong, and yet worth knowing. Raises ValueError for what no gateway would start with."""
    if config.classifier is not None and not Path(config.classifier).exists():
        yield f"classifier: is not checked, as {config.classifier} is not on this machine"
    else:
        classifier = Classifier.load(Path(config.classifier) if config.classifier is not None else None)
        Desk(config.tiers, classifier.usual, config.shadow_policies).check(everybody(config))
        if (told := unknown(config, classifier.usual)) is not None:
            yield told
    if config.calibration is None:
        return
    if Path(config.calibration).exists():
        calibration.load(Path(config.calibration))
    else:
        yield f"calibration: is not checked, as {config.calibration} is not on this machine"

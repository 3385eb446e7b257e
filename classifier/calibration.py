"""What fitting confidence leaves behind: one JSON file of numbers, for one or several models.

A calibration belongs to a model and the format of its weights; for others it says nothing, and is not used.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from classifier import confidence
from classifier.artefact import ArtefactError
from classifier.confidence import AFTER, FEATURES, Rule
from classifier.prospects import Prospect

FORMAT = 1


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`model`: the fingerprint of its weights; `weights`: the format in which they are computed with; `prospects`: of
    other models, once an answer of this one has been seen."""

    model: str
    weights: str
    rules: tuple[Rule, ...]
    prospects: tuple[Prospect, ...] = ()

    def prospect(self, model: str, weights: str) -> Prospect | None:
        """Of that model's answers."""
        return next((each for each in self.prospects if (each.model, each.weights) == (model, weights)), None)


class Calibrations(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: int = FORMAT
    features: int = confidence.VERSION
    models: tuple[Calibration, ...] = ()

    def of(self, model: str, weights: str) -> Calibration | None:
        return next((each for each in self.models if (each.model, each.weights) == (model, weights)), None)

    def other_weights(self, model: str) -> tuple[str, ...]:
        """The formats that there are calibrations of this model for."""
        return tuple(each.weights for each in self.models if each.model == model)


def save(path: Path, calibrations: Calibrations) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(calibrations)) + b"\n")


def load(path: Path) -> Calibrations:
    """Raises ArtefactError for a file that is missing, damaged, or made for other features."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Calibrations)
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArtefactError(f"{path}: {error}") from error
    for name, value, known in (
        ("format", found.format, FORMAT),
        ("features", found.features, confidence.VERSION),
    ):
        if value != known:
            raise ArtefactError(f"{path}: {name} is version {value}, not {known}; calibrate again")
    fault = next(_faults(found), None)
    if fault is not None:
        raise ArtefactError(f"{path}: {fault}")
    return found


def _faults(found: Calibrations) -> Iterator[str]:
    seen = set()
    for number, each in enumerate(found.models):
        key = (each.model, each.weights)
        if key in seen:
            yield f"models[{number}]: a second calibration of {each.model} in {each.weights}"
        seen.add(key)
        whole = set()
        for place, rule in enumerate(each.rules):
            where = f"models[{number}].rules[{place}]"
            if (rule.task, rule.after) in whole:
                yield f"{where}: a second rule for the same task and number of tokens"
            whole.add((rule.task, rule.after))
            yield from (f"{where}.{fault}" for fault in _rule_faults(rule))
        others = set()
        for place, prospect in enumerate(each.prospects):
            where = f"models[{number}].prospects[{place}]"
            if (prospect.model, prospect.weights) in others:
                yield f"{where}: a second one of {prospect.model} in {prospect.weights}"
            others.add((prospect.model, prospect.weights))
            if not all(map(math.isfinite, (prospect.bias, prospect.prompt, prospect.own))):
                yield f"{where}: bias, prompt or own is not finite"


def _rule_faults(rule: Rule) -> Iterator[str]:
    if rule.after not in (None, *AFTER):
        yield f"after: {rule.after} is none of {', '.join(map(str, AFTER))}"
    for name in ("mean", "scale", "weights"):
        values = getattr(rule, name)
        if len(values) != len(FEATURES):
            yield f"{name}: has {len(values)} numbers, not {len(FEATURES)}"
        if not all(map(math.isfinite, values)):
            yield f"{name}: holds numbers that are not finite"
    if not all(value > 0 for value in rule.scale):
        yield "scale: holds numbers that are not above 0"
    if not (math.isfinite(rule.bias) and 0 <= rule.auc <= 1):
        yield "bias or auc: is no such number"

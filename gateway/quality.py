"""What a quantised model was measured to have lost, recorded beside it; and whether a tier may run it.

A record belongs to weights by their fingerprint and by how the engine keeps them, so that it does not outlive them.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from backends.catalogue import here
from backends.fingerprint import fingerprint
from gateway.config import Config, Engine, Tier
from gateway.strictyaml import Path as Place

FILE = "quality.json"
VERSION = 1


class TaskLoss(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """On one file of tasks, whose SHA-256 is `digest`. The other fields are as in `gateway.learning.losses.Loss`."""

    task: str
    kind: str
    digest: str
    items: int
    model: float
    against: float
    loss: float
    low: float
    high: float


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`model` and `against`: fingerprints; `quantization`: how the engine kept the weights of `model`."""

    model: str
    quantization: str
    against: str
    against_name: str
    made: str  # time of UTC
    tasks: tuple[TaskLoss, ...]

    @property
    def worst(self) -> TaskLoss:
        """The task whose interval reaches highest."""
        return max(self.tasks, key=lambda task: task.high)


class Records(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One for each way to keep the weights."""

    version: int = VERSION
    records: tuple[Record, ...] = ()


def path_of(model: Path) -> Path:
    """Where the records of a folder or a .gguf file are."""
    return model / FILE if model.is_dir() else model.with_name(f"{model.name}.{FILE}")


def load(model: Path) -> tuple[Record, ...]:
    """Empty where there are none. Raises ValueError for a file that is none of ours, OSError."""
    path = path_of(model)
    if not path.exists():
        return ()
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Records)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: {error}") from error
    if found.version != VERSION:
        raise ValueError(f"{path}: is of version {found.version}, not {VERSION}")
    return found.records


def save(model: Path, record: Record) -> tuple[Path, Record]:
    """In the place of the one for the same way to keep the weights, of which it takes over the tasks that were not
    measured again, if both are of the same weights. Returns the file and the whole record.

    Raises ValueError, OSError.
    """
    path = path_of(model)
    others = []
    for each in load(model):
        if each.quantization != record.quantization:
            others.append(each)
        elif (each.model, each.against) == (record.model, record.against):
            record = replace(record, tasks=(*_besides(each.tasks, record.tasks), *record.tasks))
    content = msgspec.json.format(msgspec.json.encode(Records(records=(*others, record))))
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content + b"\n")
    partial.rename(path)
    return path, record


def _besides(before: tuple[TaskLoss, ...], now: tuple[TaskLoss, ...]) -> list[TaskLoss]:
    names = {each.task for each in now}
    return [each for each in before if each.task not in names]


def gate_of(tier: Tier, engine: Engine) -> float | None:
    """The largest loss that the engine may have, as a share; its own gate stands above the tier's."""
    gate = engine.quality_gate or tier.quality_gate
    return None if gate is None else float(gate.rstrip("%")) / 100


def gated(config: Config) -> Iterator[tuple[Place, Engine, float]]:
    """The engines with a gate, and where in the configuration it stands."""
    for i, tier in enumerate(config.tiers):
        for j, engine in enumerate(tier.engines):
            if (gate := gate_of(tier, engine)) is not None:
                own = ("tiers", i, "engines", j, "quality_gate")
                yield own if engine.quality_gate is not None else ("tiers", i, "quality_gate"), engine, gate


def faults(config: Config) -> Iterator[tuple[Place, str]]:
    """Why engines may not start, by the place in the configuration. Of models that are not here nothing is said."""
    for place, engine, gate in gated(config):
        if (model := here(engine.model)) is not None and (reason := refusal(engine, model, gate)) is not None:
            yield place, reason


def unchecked(config: Config) -> list[str]:
    """The models with a gate that are not on this machine."""
    return [engine.model for _, engine, _ in gated(config) if here(engine.model) is None]


def refusal(engine: Engine, model: Path, gate: float) -> str | None:
    """Why the engine may not run `model`, and what to do. Raises OSError."""
    command = f"headrace evaluate model --model {engine.model}"
    command += "" if engine.weights == "none" else f" --quantization {engine.weights}"
    measure = f"measure it: {command} --against WHOLE_MODEL --tasks FILE..."
    try:
        records = load(model)
    except ValueError as error:
        return f"{error}; {measure}"
    record = next((each for each in records if each.quantization == engine.weights), None)
    if record is None:
        others = ", ".join(each.quantization for each in records)
        of = f" with quantization {engine.weights} (only with {others})" if records else ""
        return f"nobody has recorded what {engine.model} loses{of}; {measure}"
    if record.model != fingerprint(model):
        return f"what is recorded beside {engine.model} is of other weights; {measure}"
    worst = record.worst
    if worst.high > gate:
        return (
            f"{engine.model} may have lost {worst.high:.1%} on {worst.task} (upper end of a 90% interval around "
            f"{worst.loss:.1%}), more than {gate:.1%}"
        )
    return None

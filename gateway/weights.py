"""What the replicas of a configuration run, as calibrations know it, and who judges their answers."""

from pathlib import Path

from backends.catalogue import ModelError, resolve
from backends.fingerprint import fingerprint
from backends.instructions import auto_dtype, cpu_has_avx2
from classifier import calibration
from gateway.config import Config, Engine, Remote, Tier
from gateway.judges import Judges, Weights

MISSING = "missing"  # stands for a model that is not on this machine


def open_judges(config: Config) -> Judges:
    """Raises ArtefactError for a calibration that cannot be used, OSError."""
    if config.calibration is None:
        return Judges.none(*(tier.name for tier in config.tiers))
    found = calibration.load(Path(config.calibration))
    return Judges(config.tiers, found, {tier.name: weights_of(tier) for tier in config.tiers})


def weights_of(tier: Tier) -> list[Weights]:
    """Of each replica. Raises OSError."""
    return [*map(_of_engine, tier.engines), *map(_of_remote, tier.remotes)]


def _of_engine(engine: Engine) -> Weights:
    try:
        model = fingerprint(resolve(engine.model))
    except ModelError:
        model = MISSING
    return Weights(model, f"{_format(engine)}{_cached(engine)}")


def _format(engine: Engine) -> str:
    if engine.quantization in ("int8", "int4") or engine.quantization == "auto" and _fits_the_file(engine):
        return engine.quantization
    return _computed(engine)


def _computed(engine: Engine) -> str:
    return auto_dtype(engine.device) if engine.computes == "auto" else engine.computes


def _cached(engine: Engine) -> str:
    """Keys and values in another type than is computed in make other confidences, too."""
    kept = {"fp32": "float32", "bf16": "bfloat16"}.get(engine.kv_cache, engine.kv_cache)
    return "" if kept in ("auto", _computed(engine)) else f" with KV in {kept}"


def _fits_the_file(engine: Engine) -> bool:
    """Whether `auto` keeps the weights as the file has them, and not in the type that is computed in."""
    return engine.device == "cpu" and cpu_has_avx2()


def _of_remote(remote: Remote) -> Weights:
    """Nobody here sees its weights: what its server calls it has to do."""
    return Weights(f"remote:{remote.model}", remote.kind)

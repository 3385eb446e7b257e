"""Whether an engine can run as the ranks that it is configured to, as far as that is known before it starts."""

import json

from backends.catalogue import resolve
from backends.models.config import ConfigError, DecoderConfig
from backends.models.registry import decoder_config
from backends.models.sharding import divided
from gateway.config import Engine


def refused(engine: Engine) -> str | None:
    """Why not. A model that is not on this machine, or in one file, is left for the engine to read."""
    ranks = engine.tensor_parallel
    if ranks == 1:
        return None
    if ":" in engine.device:
        return f"{ranks} ranks need a GPU each, and device: {engine.device} is one: say cuda"
    try:
        model = decoder_config(json.loads((resolve(engine.model) / "config.json").read_bytes()))
    except (OSError, ValueError):
        return None
    return _indivisible(model, ranks)


def _indivisible(model: DecoderConfig, ranks: int) -> str | None:
    try:
        divided(model, ranks)
    except ConfigError as error:
        return str(error).removeprefix("tensor_parallel: ")
    return None

"""From a checkpoint's `quantization_config` and the tensors of its files to weights, whatever packed them."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from backends.models.fields import ConfigError, choice, mapping
from backends.models.packed import awq, bitsandbytes, compressed, fp8, gptq
from backends.models.packed.files import Files, Packing
from backends.models.stored import Stored

_log = logging.getLogger(__name__)

METHODS: dict[str, Callable[[Mapping[str, Any], Files], Packing]] = {
    "awq": awq.opened,
    "gptq": gptq.opened,
    "compressed-tensors": compressed.opened,
    "fp8": fp8.opened,
    "fbgemm_fp8": fp8.opened,
    "bitsandbytes": bitsandbytes.opened,
}

# Of the text model.
_IN_A_LAYER = re.compile(r"(model|language_model\.model|model\.language_model)\.layers\.\d+\..*\.weight")
# For a cache of keys and values in 8 bits; what is in a cache here has scales of its own.
_OF_THE_CACHE = re.compile(r".*\.(k|v|q|kv|prob)_(scale|zero_point)")


def settings_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `quantization_config` of a config.json, also of one that has it in `text_config`; empty: none. Raises
    ConfigError."""
    return mapping(config, "quantization_config") or mapping(
        mapping(config, "text_config"), "quantization_config"
    )


def unpacked(settings: Mapping[str, Any], files: Files) -> tuple[dict[str, Stored], frozenset[str]]:
    """The packed weights, each by the name of the whole one, and the names of the tensors that are used up by them.

    Raises ConfigError naming a field of `quantization_config` that is not supported, ValueError naming a tensor that
    is missing or does not fit.
    """
    try:
        method = choice(settings, "quant_method", METHODS)
        packing = METHODS[method](settings, files)
    except ConfigError as error:
        raise ConfigError(f"quantization_config.{error}") from None
    if not packing.weights:
        raise ValueError(f"quantization_config says {method}, but no layer has a tensor {packing.sign}")
    _check(method, packing, files)
    types = Counter(weight.type for weight in packing.weights.values())
    _log.info("the file has %s", ", ".join(f"{count} linears in {type}" for type, count in types.items()))
    of_the_cache = frozenset(name for name in files if _OF_THE_CACHE.fullmatch(name))
    return {f"{name}.weight": weight for name, weight in packing.weights.items()}, packing.used | of_the_cache


def _check(method: str, packing: Packing, files: Files) -> None:
    """The lists of the config and what is in the files have to say the same."""
    for name in packing.weights:
        if packing.left_whole(name):
            raise ValueError(f"{name}: is quantised, but quantization_config says that it is not")
    for name, tensor in files.items():
        layer = name.removesuffix(".weight")
        if name in packing.used or len(tensor.shape) != 2 or not _IN_A_LAYER.fullmatch(name):
            continue
        if not packing.left_whole(layer):
            raise ValueError(
                f"{layer}.{packing.sign}: missing from the checkpoint, though quantization_config says "
                f"{method} and does not leave this layer out"
            )

"""Checkpoints that bitsandbytes wrote, of 4 bits (NF4 and FP4) or 8."""

from collections.abc import Mapping
from typing import Any

import torch

from backends.models.fields import ConfigError
from backends.models.packed.files import FLOATS, Files, Module, Packing, modules
from backends.models.packed.lists import left_whole
from backends.models.packed.tensor import PackedTensor
from backends.quantization.packing import bitsandbytes

_STATES = tuple(f"{bitsandbytes.STATE}{type}" for type in bitsandbytes.TYPES)
_NESTED = ("weight.nested_absmax", "weight.nested_quant_map")
_FOUR_BITS = ("weight.absmax", "weight.quant_map", *_NESTED, *_STATES)
_EIGHT_BITS = ("SCB", "weight_format")
_HOLDERS = {"U8", "I8", *FLOATS}  # types whose bytes may hold four bits


def opened(settings: Mapping[str, Any], files: Files) -> Packing:
    """Raises ConfigError where neither width is on, ValueError naming a tensor that does not fit."""
    four = bool(settings.get("load_in_4bit"))
    if four is bool(settings.get("load_in_8bit")):
        raise ConfigError("load_in_4bit: exactly one of load_in_4bit and load_in_8bit has to be true")
    suffixes = _FOUR_BITS if four else _EIGHT_BITS
    found = modules(files, ("weight", *suffixes), lambda tensors: any(name in tensors for name in suffixes))
    read = _four_bits if four else _eight_bits
    return Packing.of(found, read, left_whole(settings, "llm_int8_skip_modules"), suffixes[0])


def _four_bits(module: Module) -> PackedTensor:
    name = next((each for each in _STATES if each in module), _STATES[0])
    module.find(name, {"U8"}, dimensions=1)
    holder = module.find("weight", _HOLDERS)
    module.find("weight.absmax", {"U8", "F32"}, dimensions=1)
    module.find("weight.quant_map", {"F32"}, (16,))
    if any(each in module for each in _NESTED):
        for each in _NESTED:
            module.find(each, {"F32"}, dimensions=1)
    try:
        tensors = {suffix: module.read(suffix) for suffix in module.tensors}
        state = bitsandbytes.state_of(tensors)
    except ValueError as error:
        raise ValueError(f"{module.name}.{name}: {error}") from None
    rows, columns = state.shape
    bytes = holder.shape[0] * holder.shape[1] * tensors["weight"].element_size()
    if bytes != -(-rows * columns // 2):
        raise ValueError(f"{module.name}.weight: {bytes} bytes do not hold {rows} x {columns} weights")

    def dequantize(part: range) -> torch.Tensor:
        tensors = {suffix: module.read(suffix) for suffix in module.tensors}
        return bitsandbytes.unpack(tensors, part).dequantized()

    return PackedTensor(f"bitsandbytes {state.type}", (rows, columns), dequantize)


def _eight_bits(module: Module) -> PackedTensor:
    rows, columns = module.find("weight", {"I8"}).shape
    module.find("SCB", {"F32"}, (rows,))
    if "weight_format" in module and module.read("weight_format").any():
        raise ValueError(f"{module.name}.weight_format: an order for some GPUs is not supported, only rows")

    def dequantize(part: range) -> torch.Tensor:
        run = slice(part.start, part.stop)
        return bitsandbytes.unpack_bytes({name: module.read(name)[run] for name in ("weight", "SCB")})

    return PackedTensor("bitsandbytes of 8 bits", (rows, columns), dequantize)

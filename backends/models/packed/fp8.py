"""Checkpoints of 8-bit floats: those of transformers and vLLM ("fp8"), of fbgemm, of compressed-tensors.

Scales that are for activations are not needed: here activations are whole, or rounded by what they are.
"""

from collections.abc import Mapping
from typing import Any

import torch

from backends.models.fields import ConfigError, choice
from backends.models.packed.files import FLOATS, Files, Module, Packing, modules
from backends.models.packed.lists import left_whole
from backends.models.packed.tensor import Float8Tensor
from backends.quantization.int4 import GROUP
from backends.quantization.packing.fp8 import BLOCK_SCALE, SCALE, Float8

OF_ACTIVATIONS = ("input_scale", "input_zero_point", "output_scale", "input_scale_ub", "activation_scale")
TYPE = "F8_E4M3"
_SCALES = (SCALE, BLOCK_SCALE)

Piece = tuple[int, int]  # rows and columns that share a scale


def opened(settings: Mapping[str, Any], files: Files) -> Packing:
    """Raises ConfigError for another kind of floats, ValueError naming a tensor that does not fit."""
    choice(settings, "fmt", ("e4m3",), default="e4m3")
    choice(settings, "activation_scheme", ("dynamic", "static"), default="dynamic")
    block = block_of(settings, "weight_block_size")
    found = modules(files, ("weight", *_SCALES, *OF_ACTIVATIONS), _is_packed)
    listed = left_whole(settings, "modules_to_not_convert", "ignored_layers")
    sign = BLOCK_SCALE if block else SCALE
    return Packing.of(found, lambda module: weight_of(module, block), listed, sign)


def block_of(settings: Mapping[str, Any], field: str) -> Piece | None:
    """Rows and columns of a block, where the config says them. Raises ConfigError."""
    value = settings.get(field)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and n > 0 for n in value):
        raise ConfigError(f"{field}: {value!r} is not a pair of positive numbers")
    return value[0], value[1]


def weight_of(module: Module, block: Piece | None) -> Float8Tensor:
    """`block`: of scales for neither rows nor all. Raises ValueError naming a tensor that does not fit."""
    rows, columns = module.find("weight", {TYPE}).shape
    name = next((each for each in _SCALES if each in module), BLOCK_SCALE if block else SCALE)
    piece = _piece(module, name, (rows, columns), block)
    height = max(1, piece[0])
    in_groups = piece[1] < columns and piece[1] % GROUP  # of columns that no kernel has

    def take(part: range) -> Float8:
        scales = module.read(name).reshape(-(-rows // height), -1)
        each = scales[torch.arange(part.start, part.stop) // height]
        return Float8(module.read("weight")[part.start : part.stop], each, (1, piece[1]))

    return Float8Tensor("fp8", (rows, columns), take, "small" if in_groups else "float8")


def _piece(module: Module, name: str, shape: tuple[int, int], block: Piece | None) -> Piece:
    rows, columns = shape
    known = {(): shape, (1,): shape, (1, 1): shape, (rows,): (1, columns), (rows, 1): (1, columns)}
    if block is not None:
        known[-(-rows // block[0]), -(-columns // block[1])] = block
    dimensions = len(module.tensors[name].shape) if name in module else 2
    found = module.find(name, FLOATS, dimensions=dimensions).shape
    if found not in known:
        *others, last = (str(list(each)) for each in known)
        raise ValueError(f"{module.name}.{name}: has shape {list(found)}, not {', '.join(others)} or {last}")
    return known[found]


def _is_packed(tensors: Files) -> bool:
    return any(name in tensors for name in _SCALES) or "weight" in tensors and tensors["weight"].type == TYPE

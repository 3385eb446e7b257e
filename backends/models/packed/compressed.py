"""Checkpoints of compressed-tensors, such as llm-compressor writes.

Schemes for activations are not needed: here activations are whole, or rounded by what they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from backends.models.fields import ConfigError, choice, mapping, refuse
from backends.models.packed.files import FLOATS, Files, Module, Packing, modules
from backends.models.packed.fp8 import OF_ACTIVATIONS, Piece, block_of
from backends.models.packed.fp8 import weight_of as float8_of
from backends.models.packed.groups import columns_of_groups, kind_of, words_around
from backends.models.packed.lists import left_whole, names, names_in
from backends.models.packed.tensor import Float8Tensor, GroupedTensor
from backends.quantization.grouped import Grouped
from backends.quantization.packing import compressed
from backends.quantization.packing.words import BITS, per_word

_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_STRATEGIES = ("tensor", "channel", "group", "block")
_SUFFIXES = (
    *(
        "weight",
        "weight_packed",
        "weight_shape",
        "weight_scale",
        compressed.ZERO_POINT,
        compressed.COLUMN_GROUPS,
    ),
    *OF_ACTIVATIONS,
)


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the layers of a group of the config are quantised."""

    targets: tuple[str, ...]
    format: str
    weights: Mapping[str, Any]  # of the config
    bits: int
    symmetric: bool
    strategy: str
    block: Piece | None

    def is_for(self, layer: str) -> bool:
        """Whether a target names it, or all linear layers."""
        return any(target == "Linear" or names(target, layer) for target in self.targets)

    def groups(self, columns: int) -> int:
        """How many groups the columns are in. Raises ConfigError."""
        size = columns_of_groups(self.weights, "group_size", columns) if self.strategy == "group" else columns
        return -(-columns // size)


def opened(settings: Mapping[str, Any], files: Files) -> Packing:
    """Raises ConfigError for what is not supported, ValueError naming a tensor that does not fit."""
    refuse(mapping(settings, "transform_config"), "config_groups", "rotations while the model runs")
    choice(mapping(settings, "sparsity_config"), "format", ("dense",), default="dense")
    schemes = [_scheme(settings, name) for name in mapping(settings, "config_groups")]
    if not schemes:
        raise ConfigError("config_groups: missing")
    found = modules(files, _SUFFIXES, _is_packed)
    listed = left_whole(settings, "ignore")
    return Packing.of(
        found,
        lambda module: _weight(_scheme_of(module.name, schemes), module),
        lambda layer: listed(layer) or not any(scheme.is_for(layer) for scheme in schemes),
        "weight_packed" if schemes[0].format == _FORMATS[0] else "weight_scale",
    )


def _is_packed(tensors: Files) -> bool:
    return any(name in tensors for name in ("weight_packed", "weight_scale"))


def _scheme(settings: Mapping[str, Any], name: str) -> Scheme:
    group = mapping(mapping(settings, "config_groups"), name)
    try:
        refuse(group, "output_activations", "outputs are not rounded here")
        format = choice(group if group.get("format") else settings, "format", _FORMATS)
        weights = mapping(group, "weights")
        refuse(weights, "dynamic", "weights have the scales of the file")
        kind = choice(weights, "type", ("int", "float"), default="int")
        if kind == "float" and format == "pack-quantized" or kind == "int" and format == "float-quantized":
            raise ConfigError(f"type: {kind!r} does not go with the format {format}")
        block = block_of(weights, "block_structure")
        strategy = _strategy(weights)
        if strategy == "group" and kind == "float":
            block = 1, columns_of_groups(weights, "group_size", 0)
        return Scheme(
            tuple(names_in(group, "targets")),
            "float-quantized" if kind == "float" else format,
            weights,
            choice(weights, "num_bits", (8,) if kind == "float" else BITS),
            choice(weights, "symmetric", (True, False), default=True),
            strategy,
            block,
        )
    except ConfigError as error:
        raise ConfigError(f"config_groups.{name}.{error}") from None


def _strategy(weights: Mapping[str, Any]) -> str:
    """Where it is left out, the size of a group says it."""
    size = weights.get("group_size")
    strategy = choice(weights, "strategy", _STRATEGIES, default="group" if size else "tensor")
    return str(strategy)


def _scheme_of(layer: str, schemes: list[Scheme]) -> Scheme:
    """One that names the layer goes before those for all."""
    for_it = [scheme for scheme in schemes if scheme.is_for(layer)]
    named = [scheme for scheme in for_it if "Linear" not in scheme.targets]
    if not for_it:
        raise ValueError(
            f"{layer}.weight_scale: the layer is quantised, but no target of config_groups names it"
        )
    return (named or for_it)[0]


def _weight(scheme: Scheme, module: Module) -> Float8Tensor | GroupedTensor:
    if scheme.format == "float-quantized":
        return float8_of(module, scheme.block)
    return _words(scheme, module) if scheme.format == "pack-quantized" else _bytes(scheme, module)


def _words(scheme: Scheme, module: Module) -> GroupedTensor:
    module.find("weight_shape", {"I64", "I32"}, (2,))
    rows, columns = module.read("weight_shape").tolist()
    bits, groups = scheme.bits, scheme.groups(columns)
    module.find("weight_packed", {"I32"}, (rows, -(-columns // per_word(bits))))
    _scales(module, rows, groups)
    in_words = compressed.ZERO_POINT in module and module.tensors[compressed.ZERO_POINT].type == "I32"
    if not scheme.symmetric:
        points = -(-rows // per_word(bits)) if in_words else rows
        module.find(compressed.ZERO_POINT, {"I32", "I8"}, (points, groups))
    column_groups = None
    if compressed.COLUMN_GROUPS in module:
        module.find(compressed.COLUMN_GROUPS, {"I32"}, (columns,))
        column_groups = module.read(compressed.COLUMN_GROUPS)
    elif columns % groups:
        raise ValueError(
            f"{module.name}.weight_packed: {columns} columns are not {groups} groups of one size"
        )

    def take(part: range) -> Grouped:
        words, held = words_around(part, bits, rows)
        tensors = {
            "weight_packed": module.read("weight_packed")[held],
            "weight_scale": _table(module, "weight_scale", rows)[held],
            "weight_shape": torch.tensor([held.stop - held.start, columns]),
        }
        if not scheme.symmetric:
            tensors[compressed.ZERO_POINT] = module.read(compressed.ZERO_POINT)[words if in_words else held]
        if column_groups is not None:
            tensors[compressed.COLUMN_GROUPS] = column_groups
        weight = compressed.unpack(tensors, bits)
        return weight.rows(part.start - held.start, part.stop - held.start)

    take(range(1))  # raises ValueError for groups that do not fit
    kind = kind_of(bits, columns, groups, column_groups)
    return GroupedTensor(f"compressed-tensors of {bits} bits", (rows, columns), take, kind)


def _bytes(scheme: Scheme, module: Module) -> GroupedTensor:
    rows, columns = module.find("weight", {"I8"}).shape
    groups = scheme.groups(columns)
    _scales(module, rows, groups)
    if not scheme.symmetric:
        scales = module.tensors["weight_scale"].shape
        module.find(compressed.ZERO_POINT, {"I8"}, scales)

    def take(part: range) -> Grouped:
        run = slice(part.start, part.stop)
        names = ("weight_scale",) if scheme.symmetric else ("weight_scale", compressed.ZERO_POINT)
        tables = {name: _table(module, name, rows)[run] for name in names}
        return compressed.unpack_bytes({"weight": module.read("weight")[run], **tables})

    return GroupedTensor("compressed-tensors of 8 bits", (rows, columns), take, kind_of(8, columns, groups))


def _scales(module: Module, rows: int, groups: int) -> None:
    """Raises ValueError unless there is a scale for each group, or one for all."""
    dimensions = len(module.tensors["weight_scale"].shape) if "weight_scale" in module else 2
    found = module.find("weight_scale", FLOATS, dimensions=dimensions).shape
    one = groups == 1 and found in ((), (1,), (1, 1), (rows,))
    if not one and found != (rows, groups):
        raise ValueError(f"{module.name}.weight_scale: has shape {list(found)}, expected is {[rows, groups]}")


def _table(module: Module, suffix: str, rows: int) -> torch.Tensor:
    """[rows, groups], also where it is one for all."""
    table = module.read(suffix)
    return table.reshape(1, 1).expand(rows, 1) if table.numel() == 1 else table.reshape(rows, -1)

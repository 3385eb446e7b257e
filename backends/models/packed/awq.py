"""Checkpoints that AutoAWQ wrote, or others in its layout for matrix products."""

from collections.abc import Mapping
from typing import Any

from backends.models.fields import choice
from backends.models.packed.files import FLOATS, Files, Module, Packing, modules
from backends.models.packed.groups import columns_of_groups, kind_of, words_around
from backends.models.packed.lists import left_whole
from backends.models.packed.tensor import GroupedTensor
from backends.quantization.grouped import Grouped
from backends.quantization.packing import awq
from backends.quantization.packing.words import per_word

_LAYOUTS = ("gemm",)


def opened(settings: Mapping[str, Any], files: Files) -> Packing:
    """Raises ConfigError for another layout, ValueError naming a tensor that does not fit."""
    choice(settings, "bits" if "bits" in settings else "w_bit", (awq.BITS,))
    for field in ("version", "format", "checkpoint_format"):
        choice(settings, field, _LAYOUTS, default=_LAYOUTS[0])
    found = modules(files, awq.NAMES, lambda tensors: bool(tensors))
    listed = left_whole(settings, "modules_to_not_convert")
    return Packing.of(found, lambda module: _weight(settings, module), listed, awq.NAMES[0])


def _weight(settings: Mapping[str, Any], module: Module) -> GroupedTensor:
    columns, words = module.find("qweight", {"I32"}).shape
    rows = words * per_word(awq.BITS)
    field = "group_size" if "group_size" in settings else "q_group_size"
    size = columns_of_groups(settings, field, columns)
    if columns % size:
        raise ValueError(f"{module.name}.qweight: {columns} columns are not groups of {size}")
    module.find("qzeros", {"I32"}, (columns // size, words))
    module.find("scales", FLOATS, (columns // size, rows))

    def take(part: range) -> Grouped:
        words, held = words_around(part, awq.BITS, rows)
        tensors = {name: module.read(name)[:, words] for name in ("qweight", "qzeros")}
        weight = awq.unpack({**tensors, "scales": module.read("scales")[:, held]})
        return weight.rows(part.start - held.start, part.stop - held.start)

    return GroupedTensor(
        f"awq of {awq.BITS} bits", (rows, columns), take, kind_of(awq.BITS, columns, columns // size)
    )

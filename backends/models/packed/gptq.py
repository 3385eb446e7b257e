"""Checkpoints that AutoGPTQ, GPTQModel and others in their layout wrote."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from backends.models.fields import ConfigError, choice, mapping, refuse
from backends.models.packed.files import FLOATS, Files, Module, Packing, modules
from backends.models.packed.groups import columns_of_groups, kind_of, words_around
from backends.models.packed.lists import left_whole, names, names_in
from backends.models.packed.tensor import GroupedTensor
from backends.quantization.grouped import Grouped
from backends.quantization.packing import gptq
from backends.quantization.packing.words import BITS, per_word

_log = logging.getLogger(__name__)

_VERSIONS = {"gptq": 1, "gptq_v2": 2}


def opened(settings: Mapping[str, Any], files: Files) -> Packing:
    """Raises ConfigError for another layout, ValueError naming a tensor that does not fit.

    `desc_act` needs no look: g_idx, where there is one, says which group a column is of.
    """
    bits = choice(settings, "bits", BITS)
    choice(settings, "pack_dtype", ("int32",), default="int32")
    field = "checkpoint_format" if settings.get("checkpoint_format") else "format"
    said = _VERSIONS[choice(settings, field, _VERSIONS, default="gptq")]
    left_out = _left_out(settings)
    found = modules(files, gptq.NAMES, lambda tensors: bool(tensors))
    version, borrows = _version(said, bits, found.values()), _borrows(settings)
    listed = left_whole(settings, "modules_to_not_convert")
    return Packing.of(
        found,
        lambda module: _weight(settings, module, bits, version, borrows),
        lambda layer: listed(layer) or any(names(entry, layer) for entry in left_out),
        gptq.NAMES[0],
    )


def _left_out(settings: Mapping[str, Any]) -> list[str]:
    """Of GPTQModel's `dynamic`, rules by regular expression: "-:" leaves layers whole, others change their settings."""
    refuse(
        settings, "modules_in_block_to_quantize", "list the layers that are whole in modules_to_not_convert"
    )
    rules = list(mapping(settings, "dynamic"))
    for rule in rules:
        if not rule.startswith("-:"):
            raise ConfigError(f"dynamic: settings of their own for some layers ({rule!r}) are not supported")
    return names_in({"dynamic": [f"re:{rule.removeprefix('-:')}" for rule in rules]}, "dynamic")


def _borrows(settings: Mapping[str, Any]) -> bool:
    """Whether GPTQModel wrote the zeros, see `packing.gptq`; it says so as "gptqmodel:" with its version."""
    said = mapping(settings, "meta").get("quantizer") or []
    return any(
        str(each).lower().startswith("gptqmodel") for each in ([said] if isinstance(said, str) else said)
    )


def _version(said: int, bits: int, found: Iterable[Module]) -> int:
    """Some files say one version and hold the other. All zeros of symmetric weights are in the middle, which shows;
    others are believed."""
    for module in found:
        module.find("qzeros", {"I32"})
        shown = gptq.stored_version(module.read("qzeros"), bits)
        if shown is not None and shown != said:
            _log.warning(
                "the config says version %d of GPTQ's layout, the zeros are those of version %d, which is believed",
                said,
                shown,
            )
        return shown or said
    return said


def _weight(
    settings: Mapping[str, Any], module: Module, bits: int, version: int, borrows: bool
) -> GroupedTensor:
    words, rows = module.find("qweight", {"I32"}).shape
    columns = words * per_word(bits)
    size = columns_of_groups(settings, "group_size", columns)
    groups = -(-columns // size)
    module.find("qzeros", {"I32"}, (groups, -(-rows // per_word(bits))))
    module.find("scales", FLOATS, (groups, rows))
    column_groups = torch.arange(columns, dtype=torch.int32) // size
    if "g_idx" in module:
        column_groups = module.find("g_idx", {"I32"}, (columns,)).read()

    def take(part: range) -> Grouped:
        words, held = words_around(part, bits, rows)
        tensors = {name: module.read(name)[:, held] for name in ("qweight", "scales")}
        tensors |= {"qzeros": module.read("qzeros")[:, words], "g_idx": column_groups}
        weight = gptq.unpack(tensors, bits, version, borrows=borrows)
        return weight.rows(part.start - held.start, part.stop - held.start)

    try:
        take(range(1))
    except ValueError as error:
        raise ValueError(f"{module.name}.g_idx: {error}") from None
    kind = kind_of(bits, columns, groups, column_groups)
    return GroupedTensor(f"gptq of {bits} bits", (rows, columns), take, kind)

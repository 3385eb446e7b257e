"""A small model in every format: the packed folder, and beside it one with the weights that this stands for."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.quantization.grouped import Grouped

Tensors = dict[str, torch.Tensor]
# A weight to its tensors, and to what these stand for.
Pack = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]


@dataclass(frozen=True)
class Written:
    """Folders of one model: packed, and with whole float32 weights."""

    packed: Path
    whole: Path


Write = Callable[..., Written]


@pytest.fixture(scope="session")
def write_packed(
    save_model: Callable[..., tuple[Path, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Write:
    """`write_packed(settings, pack)`: the linears of a llama of three layers by `pack`, the head left whole;
    `edit` changes the packed tensors, `others` are fields of the config."""
    source, _ = save_model("llama", tie_word_embeddings=False)

    def write(
        settings: Mapping[str, Any],
        pack: Pack,
        edit: Callable[[Tensors], object] = lambda tensors: None,
        **others: Any,
    ) -> Written:
        folder = tmp_path_factory.mktemp("packed")
        written = Written(folder / "packed", folder / "whole")
        packed: Tensors = {}
        whole: Tensors = {}
        for name, tensor in load_file(source / "model.safetensors").items():
            whole[name] = packed[name] = tensor
            if "_proj.weight" in name:
                tensors, whole[name] = pack(packed.pop(name))
                packed |= {f"{name.removesuffix('weight')}{suffix}": each for suffix, each in tensors.items()}
        edit(packed)
        config = json.loads((source / "config.json").read_text()) | others
        _write(written.whole, config, whole)
        _write(written.packed, {**config, "quantization_config": dict(settings)}, packed)
        return written

    return write


def _write(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")


Round = Callable[..., Grouped]


@pytest.fixture(scope="session")
def to_grouped() -> Round:
    """`to_grouped(weight, bits, group, symmetric=…)`: to the nearest. A group of None is a whole row."""
    return _to_grouped


def _to_grouped(weight: torch.Tensor, bits: int, group: int | None, *, symmetric: bool = False) -> Grouped:
    rows, columns = weight.shape
    pieces = weight.view(rows, -1, group or columns)
    if symmetric:
        most = pieces.abs().amax(2)
        scales = (most / ((1 << (bits - 1)) - 0.5)).half()
        zeros = torch.full_like(scales, 1 << (bits - 1))
    else:
        least, most = pieces.amin(2).clamp(max=0), pieces.amax(2).clamp(min=0)
        scales = ((most - least) / ((1 << bits) - 1)).half()
        zeros = (-least / scales).round().clamp(1, (1 << bits) - 1)
    integers = (pieces / scales.unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(0, (1 << bits) - 1)
    return Grouped(bits, integers.view(rows, columns).to(torch.uint8), scales, zeros.to(torch.uint8))

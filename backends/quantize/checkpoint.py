"""The folder of a quantised model, as Hugging Face's: config.json, one file of weights for each block and one for the
rest, an index of them, and whatever else the source has but weights."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from backends.catalogue import MANIFEST
from backends.models.checkpoint import Checkpoint
from backends.quantize.schemes import Scheme
from backends.quantize.subject import stored

INDEX = "model.safetensors.index.json"
RECORD = "quality.json"  # of the source; what is made here is to be evaluated by itself
_KEPT = {"", ".json", ".jinja", ".md", ".model", ".tiktoken", ".txt"}  # suffixes of what is copied
_OWN = {"config.json", INDEX, MANIFEST, RECORD}


def shard(number: int, count: int) -> str:
    """The file name of the `number`th of `count` files, from 1."""
    return f"model-{number:05}-of-{count:05}.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], **metadata: str) -> None:
    """Whole or not at all. Raises OSError, SafetensorError."""
    partial = path.with_name(f".{path.name}.partial")
    here = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    save_file(here, partial, metadata={"format": "pt", **metadata})
    partial.chmod(0o644)  # safetensors leaves it to its owner alone
    partial.rename(path)


def rest(checkpoint: Checkpoint, blocks: str, tied: bool, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """All tensors that are in no block. `blocks`: what the names of those in one begin with."""
    names = sorted(name for name in checkpoint.names() if not name.startswith(blocks))
    return {
        name: stored(name, checkpoint.load(name, torch.float32), dtype)
        for name in names
        if not (tied and name == "lm_head.weight")
    }


def finish(folder: Path, checkpoint: Checkpoint, scheme: Scheme) -> None:
    """Everything beside the files of weights, which are there. Raises OSError."""
    name = str(scheme.dtype).removeprefix("torch.")
    config = checkpoint.config | {"torch_dtype": name, "quantization_config": scheme.config()}
    if "dtype" in config:
        config["dtype"] = name
    _write_json(folder / "config.json", config)
    _write_json(folder / INDEX, _index(folder))
    for file in sorted(checkpoint.path.iterdir()):
        if (
            file.is_file()
            and file.suffix in _KEPT
            and file.name not in _OWN
            and not file.name.startswith(".")
        ):
            shutil.copyfile(file, folder / file.name)


def _index(folder: Path) -> dict[str, Any]:
    files = sorted(folder.glob("model-*.safetensors"))
    weight_map: dict[str, str] = {}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            weight_map |= dict.fromkeys(tensors.keys(), file.name)
    size = sum(file.stat().st_size for file in files)
    return {"metadata": {"total_size": size}, "weight_map": weight_map}


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")

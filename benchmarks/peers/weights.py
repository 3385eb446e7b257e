"""One of our models in the files that peers read: the same weights, without a vocabulary where that is not needed.

What a catalogue model has in small integers is expanded and, for GGUF, rounded again to the format that is measured.
Files are kept under `.bench/models`.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from backends.models.checkpoint import Checkpoint, open_checkpoint
from backends.models.config import DecoderConfig
from backends.models.registry import decoder_config

FOLDER = Path(__file__).parents[2] / ".bench" / "models"


def hugging_face(folder: Path) -> Path:
    """A folder with bfloat16 weights."""
    made = FOLDER / folder.name
    if (made / "model.safetensors").exists():
        return made
    made.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.json"):
        if "index" not in file.name:
            shutil.copy(file, made)
    checkpoint = open_checkpoint(folder)
    (made / "config.json").write_text(json.dumps(checkpoint.config | {"dtype": "bfloat16"}))
    weights = {name: checkpoint.load(name, torch.bfloat16).clone() for name in sorted(checkpoint.names())}
    partial = made / "partial"
    save_file(weights, partial, metadata={"format": "pt"})
    partial.rename(made / "model.safetensors")
    return made


def gguf_file(folder: Path, type: str) -> Path:
    """`type`: of the matrices, BF16, Q8_0 or Q4_0; with the last, embedding and head have Q8_0."""
    made = FOLDER / f"{folder.name}-{type}.gguf"
    if made.exists():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = open_checkpoint(folder)
    config = decoder_config(checkpoint.config)
    arch = checkpoint.config["model_type"]
    partial = made.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, arch)
    _describe(writer, checkpoint.config, config)
    for name, weight, kind in _tensors(checkpoint, config, arch, type):
        writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(made)
    return made


def _describe(writer: Any, stored: dict[str, Any], config: DecoderConfig) -> None:
    writer.add_block_count(config.layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.mlp_width)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(float(stored["rope_theta"]))
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")


def _tensors(
    checkpoint: Checkpoint, config: DecoderConfig, arch: str, type: str
) -> Iterator[tuple[str, "np.ndarray[Any, Any]", Any]]:
    kinds = gguf.GGMLQuantizationType
    known = next(value for value, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(known, config.layers)
    for name in sorted(checkpoint.names()):
        weight = checkpoint.load(name, torch.float32)
        if arch == "llama" and ".q_proj." in name:
            weight = _interleaved(weight, config.heads)
        if arch == "llama" and ".k_proj." in name:
            weight = _interleaved(weight, config.kv_heads)
        kind = kinds[type] if weight.ndim == 2 else kinds.F32
        if type == "Q4_0" and weight.ndim == 2 and len(weight) == config.vocab_size:
            kind = kinds.Q8_0
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        yield theirs, weight.numpy(), kind


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The rotated pairs of each head beside one another, as the llama architecture's files have them."""
    rows, columns = weight.shape
    halves = weight.view(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns).contiguous()

"""A GGUF file as a Hugging Face checkpoint: its config, and its tensors under Hugging Face's names."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from backends.models.gguf_architectures import (
    ARCHITECTURES,
    LONG_FACTORS,
    SHORT_FACTORS,
    Architecture,
    head_dim,
)
from backends.models.gguf_file import GgufFile, read_gguf
from backends.models.stored import CheckpointError, StoredTensor
from backends.quantization.gguf import dequantize

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ROPE_FACTORS = "rope_freqs.weight"
_IN_THE_CONFIG = {_ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS}
# Tokens that end an answer whatever the file names as its end token; a base model ends with the first of them.
_END_TOKENS = (
    *("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    *("<|end|>", "<eos>", "<end_of_turn>"),
)
_CONTROL = 3  # the token type of control tokens


def open_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, StoredTensor]]:
    """The contents of config.json and generation_config.json, and the tensors.

    Raises CheckpointError for a damaged file and for an architecture, a tensor or a format that is not known.
    """
    file = read_gguf(path)
    try:
        architecture = _architecture(file)
        return _config(file, architecture), _generation(file.metadata), _tensors(file, architecture)
    except KeyError as error:
        raise CheckpointError(f"{path}: metadata {error} is missing") from error
    except (ArithmeticError, TypeError, ValueError) as error:  # numbers that are text, or zero
        raise CheckpointError(f"{path}: {error}") from error


def _architecture(file: GgufFile) -> Architecture:
    arch = file.metadata["general.architecture"]
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"architecture {arch!r} is not supported; supported are {known}")
    return ARCHITECTURES[arch]


def _config(file: GgufFile, architecture: Architecture) -> dict[str, Any]:
    arch = file.metadata["general.architecture"]
    keys = {key.removeprefix(f"{arch}."): value for key, value in file.metadata.items()}
    heads, size = keys["attention.head_count"], head_dim(keys)
    if keys.get("rope.dimension_count", size) != size and not architecture.partly_rotated:
        raise ValueError(f"{arch}.rope.dimension_count: rotating a part of a head is not supported")
    config = {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "hidden_size": keys["embedding_length"],
        "intermediate_size": keys["feed_forward_length"],
        "num_hidden_layers": keys["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": keys.get("attention.head_count_kv", heads),
        "head_dim": size,
        "hidden_act": "silu",
        "max_position_embeddings": keys["context_length"],
        "rms_norm_eps": keys["attention.layer_norm_rms_epsilon"],
        "rope_theta": keys.get("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(keys, file.tensors.get(_ROPE_FACTORS)),
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": keys.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": keys.get("tokenizer.ggml.eos_token_id"),
    }
    return config | architecture.fields(keys, file)


def _generation(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json: all tokens that end an answer, those that the file names first."""
    named = [metadata.get(f"tokenizer.ggml.{role}_token_id") for role in ("eos", "eot", "eom")]
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    types = metadata.get("tokenizer.ggml.token_type", [])
    typed = zip(tokens, types, strict=bool(types))  # the types may be missing
    control = {text: id for id, (text, type) in enumerate(typed) if type == _CONTROL}
    ends = [*named, *(control.get(text) for text in _END_TOKENS)]
    ids = list(dict.fromkeys(id for id in ends if id is not None))
    return {"bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"), "eos_token_id": ids}


def _rope_scaling(keys: Mapping[str, Any], factors: StoredTensor | None) -> dict[str, Any] | None:
    if factors is not None:
        return _llama3_scaling(keys, dequantize(factors.read(), factors.type, torch.float32).double())
    kind = keys.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ValueError(f"rope.scaling.type {kind!r} is not supported")
    scaling = {"rope_type": kind, "factor": keys["rope.scaling.factor"]}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = keys["rope.scaling.original_context_length"]
    return scaling


def _llama3_scaling(keys: Mapping[str, Any], factors: torch.Tensor) -> dict[str, Any]:
    """Llama 3's rule, of which a GGUF file holds only the outcome: the divisor of each frequency, [head_dim / 2].

    Raises ValueError where the rule with Llama 3's own bounds (1, 4, 8192) does not give these divisors.
    """
    low, high, original, factor = 1.0, 4.0, 8192, float(factors.max())
    theta = keys.get("rope.freq_base", 10000.0)
    frequencies = theta ** -(torch.arange(len(factors), dtype=torch.float64) / len(factors))
    turns = original * frequencies / (2 * math.pi)  # within the original context
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    if not torch.allclose(factors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-3):
        raise ValueError(f"{_ROPE_FACTORS}: these frequency factors are not made by Llama 3's rule")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _tensors(file: GgufFile, architecture: Architecture) -> dict[str, StoredTensor]:
    arch = file.metadata["general.architecture"]
    heads = file.metadata[f"{arch}.attention.head_count"]
    permuted = {"attn_q": heads, "attn_k": file.metadata.get(f"{arch}.attention.head_count_kv", heads)}
    tensors = {}
    for name, tensor in file.tensors.items():
        if name in _IN_THE_CONFIG:
            continue
        part = name.split(".")[-2] if "." in name else name
        if architecture.interleaved and part in permuted:
            tensor = _unpermuted(tensor, permuted[part])
        if architecture.norm_offset and part.endswith("norm"):
            tensor = _lowered(tensor, architecture.norm_offset)
        tensors[_hf_name(name, architecture)] = tensor
    return tensors


def _hf_name(name: str, architecture: Architecture) -> str:
    names = architecture.layer
    match name.split("."):
        case [part, ("weight" | "bias") as kind] if part in _TOP:
            return f"{_TOP[part]}.{kind}"
        case ["blk", layer, part, ("weight" | "bias") as kind] if layer.isdecimal() and part in names:
            return f"model.layers.{layer}.{names[part]}.{kind}"
    raise ValueError(f"tensor {name} has no place in the architecture {architecture.model_type}")


def _unpermuted(tensor: StoredTensor, heads: int) -> StoredTensor:
    """The rows of each head in Hugging Face's order: first halves, then second halves, of the rotated pairs.

    The llama architecture's files hold the pairs interleaved. Only rows change places, so quantised rows move whole.
    """
    rows = tensor.shape[0]
    if rows % (2 * heads):
        raise ValueError(f"{rows} rows of queries or keys are not {heads} heads of an even size")

    def read() -> torch.Tensor:
        raw = tensor.read()
        pairs = raw.view(heads, rows // heads // 2, 2, -1)
        return pairs.transpose(1, 2).reshape(raw.shape)

    return StoredTensor(tensor.type, tensor.shape, read)


def _lowered(tensor: StoredTensor, offset: float) -> StoredTensor:
    """A norm's weight as Hugging Face has it, in float32: less what the model adds when it runs."""

    def read() -> torch.Tensor:
        return (dequantize(tensor.read(), tensor.type, torch.float32) - offset).view(torch.uint8)

    return StoredTensor("F32", tensor.shape, read)

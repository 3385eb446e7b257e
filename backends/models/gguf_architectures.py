"""The architectures of GGUF files: how they name a layer's tensors, and what their metadata means in a config.json.

Keys and names are those of llama.cpp's converter (`conversion/*.py`, `gguf-py/gguf/constants.py`); what the files leave
out is what llama.cpp fills in for them (`src/llama-model.cpp`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from backends.models.gguf_file import GgufFile
from backends.quantization.gguf import dequantize

Keys = Mapping[str, Any]
"""Metadata of a file, without the architecture's name before those that belong to it."""

LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"

_LLAMA = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_FUSED = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
_POST_NORMS = {
    **_LLAMA,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """`fields`: what a config.json of its has beyond what all have, or instead; may raise as `gguf.open_gguf`."""

    name: str  # of the class in transformers
    model_type: str
    layer: Mapping[str, str]  # a tensor's name in the file → in transformers
    fields: Callable[[Keys, GgufFile], dict[str, Any]] = lambda keys, file: {}
    interleaved: bool = False  # rows of queries and keys: the two of a rotated pair side by side
    norm_offset: float = 0.0  # what the weights of norms have been raised by
    partly_rotated: bool = False  # heads may be


def head_dim(keys: Keys) -> int:
    size: int = keys.get("attention.key_length", keys["embedding_length"] // keys["attention.head_count"])
    return size


def _llama(keys: Keys, file: GgufFile) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in file.tensors}


def _phi3(keys: Keys, file: GgufFile) -> dict[str, Any]:
    """A window of 0 stands for none. LongRoPE's divisors are tensors."""
    original, size = keys.get("rope.scaling.original_context_length", keys["context_length"]), head_dim(keys)
    fields = {
        "sliding_window": keys.get("attention.sliding_window") or None,
        "original_max_position_embeddings": original,
        "partial_rotary_factor": keys.get("rope.dimension_count", size) / size,
    }
    if LONG_FACTORS in file.tensors:
        scaling: dict[str, Any] = {
            "rope_type": "longrope",
            "long_factor": _numbers(file, LONG_FACTORS),
            "short_factor": _numbers(file, SHORT_FACTORS),
        }
        if "rope.scaling.attn_factor" in keys:
            scaling["attention_factor"] = keys["rope.scaling.attn_factor"]
        fields["rope_scaling"] = scaling
    return fields


def _numbers(file: GgufFile, name: str) -> list[float]:
    tensor = file.tensors[name]
    numbers: list[float] = dequantize(tensor.read(), tensor.type, torch.float32).tolist()
    return numbers


def _gemma2(keys: Keys, file: GgufFile) -> dict[str, Any]:
    return {
        **_gemma(keys, layers_of_the_largest=46),
        "sliding_window": keys.get("attention.sliding_window", 4096),
        "attn_logit_softcapping": keys.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.get("final_logit_softcapping", 30.0),
    }


def _gemma3(keys: Keys, file: GgufFile) -> dict[str, Any]:
    """A file without a window says that no layer has one."""
    window = keys.get("attention.sliding_window")
    windows = {
        "sliding_window": window,
        "sliding_window_pattern": keys.get("attention.sliding_window_pattern", 6),
    }
    return {
        **_gemma(keys, layers_of_the_largest=62),
        **({"sliding_window_pattern": 1} if window is None else windows),
        "rope_theta": keys.get("rope.freq_base", 1000000.0),
        "rope_local_base_freq": keys.get("rope.freq_base_swa", 10000.0),
        "final_logit_softcapping": keys.get("final_logit_softcapping"),
    }


def _gemma(keys: Keys, layers_of_the_largest: int) -> dict[str, Any]:
    """The scale of scores is not in the file. It is that of a head, but for the model of 27 B, told by its layers."""
    largest = keys["block_count"] == layers_of_the_largest
    scalar = keys["embedding_length"] // keys["attention.head_count"] if largest else head_dim(keys)
    activation = "gelu_pytorch_tanh"
    return {"hidden_act": activation, "hidden_activation": activation, "query_pre_attn_scalar": scalar}


ARCHITECTURES = {  # by `general.architecture`
    "llama": Architecture(
        name="LlamaForCausalLM", model_type="llama", layer=_LLAMA, fields=_llama, interleaved=True
    ),
    "qwen2": Architecture(name="Qwen2ForCausalLM", model_type="qwen2", layer=_LLAMA),
    "qwen3": Architecture(name="Qwen3ForCausalLM", model_type="qwen3", layer=_LLAMA | _HEAD_NORMS),
    "phi3": Architecture(
        name="Phi3ForCausalLM", model_type="phi3", layer=_FUSED, fields=_phi3, partly_rotated=True
    ),
    "gemma2": Architecture(
        name="Gemma2ForCausalLM", model_type="gemma2", layer=_POST_NORMS, fields=_gemma2, norm_offset=1.0
    ),
    "gemma3": Architecture(
        name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        layer=_POST_NORMS | _HEAD_NORMS,
        fields=_gemma3,
        norm_offset=1.0,
    ),
}

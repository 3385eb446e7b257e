"""The shapes of models that many people plan for, so that no network is needed: what their config.json say.

The numbers are those of the config.json of each repository on the Hugging Face Hub. Chat and instruct models, and
Qwen2.5-Coder, have the shape of the base model.
"""

import re
from collections.abc import Mapping
from typing import Any

_OWNERS = {"meta-llama", "mistralai", "qwen", "huggingfacetb"}  # whose repositories these names are


def _shape(
    kind: str, layers: int, width: int, mlp: int, heads: int, kv_heads: int, vocab: int, positions: int
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
    }


def _llama2(layers: int, width: int, mlp: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return _shape("llama", layers, width, mlp, heads, kv_heads, 32000, 4096)


def _llama3(layers: int, width: int, mlp: int, heads: int, positions: int = 131072) -> dict[str, Any]:
    return _shape("llama", layers, width, mlp, heads, 8, 128256, positions)


def _qwen(
    layers: int, width: int, mlp: int, heads: int, kv_heads: int, vocab: int = 152064
) -> dict[str, Any]:
    return {
        **_shape("qwen2", layers, width, mlp, heads, kv_heads, vocab, 32768),
        "tie_word_embeddings": vocab == 151936,
    }


def _mistral(vocab: int, **others: Any) -> dict[str, Any]:
    return {**_shape("mistral", 32, 4096, 14336, 32, 8, vocab, 32768), "sliding_window": None, **others}


PUBLISHED: Mapping[str, dict[str, Any]] = {
    "llama-2-7b": _llama2(32, 4096, 11008, 32, 32),
    "llama-2-13b": _llama2(40, 5120, 13824, 40, 40),
    "llama-2-70b": _llama2(80, 8192, 28672, 64, 8),
    "llama-3-8b": _llama3(32, 4096, 14336, 32, positions=8192),
    "llama-3-70b": _llama3(80, 8192, 28672, 64, positions=8192),
    "llama-3.1-8b": _llama3(32, 4096, 14336, 32),
    "llama-3.1-70b": _llama3(80, 8192, 28672, 64),
    "llama-3.2-1b": {**_llama3(16, 2048, 8192, 32), "head_dim": 64, "tie_word_embeddings": True},
    "llama-3.2-3b": {**_llama3(28, 3072, 8192, 24), "head_dim": 128, "tie_word_embeddings": True},
    "llama-3.3-70b": _llama3(80, 8192, 28672, 64),
    "mistral-7b-v0.1": _mistral(32000, sliding_window=4096),
    "mistral-7b-v0.2": _mistral(32000),
    "mistral-7b-v0.3": _mistral(32768),
    "smollm2-135m": {**_shape("llama", 30, 576, 1536, 9, 3, 49152, 8192), "tie_word_embeddings": True},
    "qwen2.5-0.5b": _qwen(24, 896, 4864, 14, 2, vocab=151936),
    "qwen2.5-1.5b": _qwen(28, 1536, 8960, 12, 2, vocab=151936),
    "qwen2.5-3b": _qwen(36, 2048, 11008, 16, 2, vocab=151936),
    "qwen2.5-7b": _qwen(28, 3584, 18944, 28, 4),
    "qwen2.5-14b": _qwen(48, 5120, 13824, 40, 8),
    "qwen2.5-32b": _qwen(64, 5120, 27648, 40, 8),
    "qwen2.5-72b": _qwen(80, 8192, 29568, 64, 8),
}


def published(name: str) -> dict[str, Any] | None:
    """The config of a model by its short name, `llama-2-70b`, or the Hub's, `meta-llama/Llama-2-70b-chat-hf`; None for
    others."""
    owner, slash, model = name.lower().rpartition("/")
    if slash and owner not in _OWNERS:
        return None
    model = re.sub(r"^meta-|-(hf|chat|instruct|coder)(?=-|$)", "", model)
    return PUBLISHED.get(model)

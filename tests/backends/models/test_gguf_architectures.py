"""Models of `transformers` written as llama.cpp's converter writes them: what is read computes the same.

Names of tensors are the gguf package's own; what its converter does to the numbers is spelled out here.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from backends.kernels.layout import KVCache, Layout, Span
from backends.kernels.select import kernels_for
from backends.models.checkpoint import open_checkpoint
from backends.models.decoder import kernels_of
from backends.models.gguf_architectures import ARCHITECTURES
from backends.models.gguf_file import GgufFile
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config

LENGTH, ORIGINAL = 60, 40  # tokens of the prompt, and of the context before it was stretched
SAME = {"key_length": 32, "value_length": 32}
WINDOW = {"attention.sliding_window": 24}
FACTORS = {
    name: [random.Random(name).uniform(*bounds) for _ in range(12)]
    for name, bounds in {"short_factor": (1.0, 1.5), "long_factor": (2.0, 6.0)}.items()
}
PHI: dict[str, Any] = {"pad_token_id": 0, "original_max_position_embeddings": ORIGINAL}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75, **FACTORS}
GEMMA: dict[str, Any] = {"sliding_window": 24, "query_pre_attn_scalar": 32}
FULL, SLIDING = "full_attention", "sliding_attention"
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}
GEMMA3: dict[str, Any] = {
    **GEMMA,
    "num_hidden_layers": 7,
    "rope_parameters": {FULL: LINEAR, SLIDING: {"rope_type": "default", "rope_theta": 1e4}},
}
LINEAR_KEYS = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base": 5e5}

# By name: the architecture in the file, the kind in transformers with its fields, and keys that not every file has.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "llama", {}, {}),
    "mistral, which is written as llama": ("llama", "mistral", {"sliding_window": None}, {}),
    "qwen2": ("qwen2", "qwen2", {}, {}),
    "qwen3": ("qwen3", "qwen3", {"tie_word_embeddings": True}, {}),
    "phi3": ("phi3", "phi3", {**PHI, "sliding_window": 30}, {"attention.sliding_window": 30}),
    "phi3, longrope over a part of each head": (
        "phi3",
        "phi3",
        {**PHI, "sliding_window": None, "rope_parameters": LONG},
        {
            "attention.sliding_window": 0,
            "rope.dimension_count": 24,
            "rope.scaling.original_context_length": ORIGINAL,
        },
    ),
    "gemma2": (
        "gemma2",
        "gemma2",
        {**GEMMA, "attn_logit_softcapping": 3.0},
        {**WINDOW, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": ("gemma3", "gemma3_text", GEMMA3, {**WINDOW, **LINEAR_KEYS}),
    "gemma3 without windows": (
        "gemma3",
        "gemma3_text",
        {**GEMMA3, "num_hidden_layers": 3, "layer_types": [FULL] * 3},
        LINEAR_KEYS,
    ),
}


def write(path: Path, architecture: str, model: Any, keys: dict[str, Any]) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for key, value in keys.items():
        add: dict[type, Any] = {str: writer.add_string, float: writer.add_float32}
        add.get(type(value), writer.add_uint32)(f"{architecture}.{key}", value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert written is not None, name
        writer.add_tensor(written, converted(architecture, name, tensor, config).numpy())
    if architecture == "phi3" and "rope.dimension_count" in keys:
        for kind, factors in FACTORS.items():
            name = f"rope_factors_{kind.removesuffix('_factor')}.weight"
            writer.add_tensor(name, np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def converted(architecture: str, name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Pairs side by side for Llama, the norms of Gemma as they are multiplied by."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = heads.get(name.split(".")[-2])
    if architecture == "llama" and count:
        return tensor.view(count, 2, -1, tensor.shape[-1]).transpose(1, 2).reshape(tensor.shape).contiguous()
    return tensor + 1 if architecture.startswith("gemma") and name.endswith("norm.weight") else tensor


def test_every_architecture_is_here() -> None:
    assert {case[0] for case in CASES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_logits_equal_those_of_the_model_that_was_written(
    tmp_path: Path, save_model: Callable[..., tuple[Path, Any]], case: tuple[Any, ...]
) -> None:
    architecture, kind, fields, keys = case
    _, oracle = save_model(kind, **fields)
    write(tmp_path / "model.gguf", architecture, oracle, keys)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    decoder = load_decoder(checkpoint, decoder_config(checkpoint.config), torch.float32, torch.device("cpu"))
    config, ids = decoder.config, random.Random(4).choices(range(199), k=LENGTH)
    cache = KVCache(config.layers, 8, 16, config.kv_heads, config.head_dim, dtype=torch.float32)
    shift = 128 if config.rope.border is not None else 0
    over = kernels_of(config, cache, 128, kernels_for)
    layout = Layout([Span(0, LENGTH, list(range(8)), shift)], cache)
    with torch.inference_mode():
        ours = decoder.forward(torch.tensor(ids), layout, torch.arange(LENGTH), over)
        theirs = oracle(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_scores_of_the_largest_gemma_have_a_scale_of_their_own(architecture: str, layers: int) -> None:
    """As the configs of google/gemma-2-27b and google/gemma-3-27b-it say: the width by the heads."""
    keys = {"embedding_length": 4608, "attention.head_count": 32, "attention.key_length": 128}
    fields = ARCHITECTURES[architecture].fields
    for count, scalar in ((layers, 144), (layers - 4, 128)):
        assert fields({**keys, "block_count": count}, GgufFile({}, {}))["query_pre_attn_scalar"] == scalar

"""Every architecture of the registry: its logits are those of `transformers`, over prompt, chunks and decoding."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.kernels.layout import KVCache, Layout, Span
from backends.kernels.reference import Kernels
from backends.kernels.select import kernels_for
from backends.models.checkpoint import open_checkpoint
from backends.models.decoder import Decoder, kernels_of
from backends.models.loader import load_decoder
from backends.models.registry import ARCHITECTURES, decoder_config

CPU = torch.device("cpu")
POSITIONS = 256
ORIGINAL = 64  # tokens of the context before it was stretched
LENGTH = 100

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
    "rope_theta": 500000.0,
}


def longrope(numbers: int) -> dict[str, Any]:
    draw = random.Random(numbers)
    factors = {
        name: [draw.uniform(*bounds) for _ in range(numbers)]
        for name, bounds in {"short_factor": (1.0, 1.5), "long_factor": (2.0, 6.0)}.items()
    }
    return {"rope_type": "longrope", "rope_theta": 1e4, **factors}


PHI = {"original_max_position_embeddings": ORIGINAL, "num_key_value_heads": 2, "pad_token_id": 0}
LAYER_TYPES = ["full_attention", "sliding_attention", "sliding_attention"]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama, yarn": ("llama", {"rope_parameters": YARN}),
    "llama, linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}},
    ),
    "mistral, heads wider than the width": ("mistral", {"head_dim": 64, "sliding_window": 24}),
    "mistral, a window of one token": ("mistral", {"sliding_window": 1}),
    "mistral, a window that is never full": ("mistral", {"sliding_window": 100}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "qwen2, windows in the upper layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen2, layer types": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 17, "layer_types": LAYER_TYPES},
    ),
    "qwen2, yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen2, yarn with exact ends": (
        "qwen2",
        {"rope_parameters": {**YARN, "truncate": False, "mscale": 0.7, "mscale_all_dim": 1.1}},
    ),
    "qwen2, yarn with its own magnitude": (
        "qwen2",
        {"rope_parameters": {**YARN, "attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0}},
    ),
    "qwen3": ("qwen3", {"head_dim": 48, "tie_word_embeddings": True}),
    "qwen3, biases and windows": (
        "qwen3",
        {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 20,
            "max_window_layers": 2,
            "tie_word_embeddings": False,
        },
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "pad_token_id": 0}),
    "smollm3, windows": (
        "smollm3",
        {
            "pad_token_id": 0,
            "no_rope_layers": [0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": 12,
        },
    ),
    "phi3": ("phi3", {**PHI, "sliding_window": 30}),
    "phi3, longrope": ("phi3", {**PHI, "rope_parameters": longrope(16)}),
    "phi4 mini: longrope over a part of each head": (
        "phi3",
        {
            **PHI,
            "rope_parameters": {**longrope(12), "partial_rotary_factor": 0.75},
            "tie_word_embeddings": True,
        },
    ),
    "gemma2": ("gemma2", {"sliding_window": 24, "query_pre_attn_scalar": 50, "attn_logit_softcapping": 3.0}),
    "gemma2 without caps": (
        "gemma2",
        {"sliding_window": 24, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": (
        "gemma3_text",
        {
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "sliding_window": 24,
            "query_pre_attn_scalar": 20,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
}
Model = tuple[Decoder, Any]


def load(folder: Path) -> Decoder:
    checkpoint = open_checkpoint(folder)
    return load_decoder(checkpoint, decoder_config(checkpoint.config), torch.float32, CPU)


@pytest.fixture(scope="module", params=MODELS.values(), ids=list(MODELS))
def model(request: pytest.FixtureRequest, save_model: Callable[..., tuple[Path, Any]]) -> Model:
    kind, fields = request.param
    folder, oracle = save_model(kind, **fields)
    return load(folder), oracle


def kernels(decoder: Decoder, make: Callable[..., Kernels] = kernels_for) -> Kernels:
    """Over a cache that held NaN before."""
    config = decoder.config
    cache = KVCache(config.layers, 16, 16, config.kv_heads, config.head_dim, dtype=decoder.embedding.dtype)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    return kernels_of(config, cache, POSITIONS, make)


def logits(
    decoder: Decoder, over: Kernels, ids: list[int], chunks: list[int], start: int = 0
) -> torch.Tensor:
    """Of all tokens from `start` on, computed in spans of the given lengths."""
    border = decoder.config.rope.border
    shift = POSITIONS if border is not None and len(ids) > border else 0
    parts = []
    for count in chunks:
        layout = Layout([Span(start, count, list(range(15, -1, -1)), shift)], over.cache)
        tokens = torch.tensor(ids[start : start + count])
        parts.append(decoder.forward(tokens, layout, torch.arange(count), over))
        start += count
    return torch.cat(parts)


def expected(oracle: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = oracle(torch.tensor([ids])).logits[0]
    return result


def prompt(length: int) -> list[int]:
    return random.Random(2).choices(range(199), k=length)


def test_every_architecture_is_here() -> None:
    assert {kind for kind, _ in MODELS.values()} | {"gemma3"} == set(ARCHITECTURES)


@pytest.mark.parametrize("make", [kernels_for, Kernels], ids=["fast", "reference"])
@pytest.mark.parametrize("length", [LENGTH, ORIGINAL], ids=["beyond the original context", "within"])
def test_logits_equal_transformers(model: Model, make: Callable[..., Kernels], length: int) -> None:
    """Whole, in chunks of 7 and of 32, and token by token after a prompt."""
    decoder, oracle = model
    ids = prompt(length)
    wanted = expected(oracle, ids)
    assert wanted.std() > 0.3  # the models are not flat
    sevens, rest = divmod(length, 7)
    cuts = [[length], [7] * sevens + [rest], [32, length - 32], [40] + [1] * (length - 40)]
    for chunks in cuts:
        ours = logits(decoder, kernels(decoder, make), ids, chunks)
        torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)


def test_bfloat16_stays_close(save_model: Callable[..., tuple[Path, Any]]) -> None:
    """The embedding's scale is rounded to the type, the norms are not."""
    folder, oracle = save_model("gemma3_text", sliding_window=24)
    checkpoint = open_checkpoint(folder)
    decoder = load_decoder(checkpoint, decoder_config(checkpoint.config), torch.bfloat16, CPU)
    ids = prompt(LENGTH)
    wanted = expected(oracle, ids)
    for make in (kernels_for, Kernels):
        ours = logits(decoder, kernels(decoder, make), ids, [60] + [1] * 40).float()
        assert (ours - wanted).norm() < 0.05 * wanted.norm()


def test_sequences_on_both_sides_of_the_border_share_a_batch(
    save_model: Callable[..., tuple[Path, Any]],
) -> None:
    """Each has the factors of its own length."""
    folder, oracle = save_model("phi3", **PHI, rope_parameters=longrope(16))
    decoder = load(folder)
    over, short, long = kernels(decoder), prompt(30), prompt(LENGTH)
    spans = [Span(0, 30, [0, 1]), Span(0, LENGTH, list(range(2, 9)), POSITIONS)]
    ours = decoder.forward(torch.tensor(short + long), Layout(spans, over.cache), torch.arange(130), over)
    for part, ids in zip(ours.split([30, LENGTH]), (short, long), strict=True):
        torch.testing.assert_close(part, expected(oracle, ids), atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def gemma3(save_model: Callable[..., tuple[Path, Any]]) -> tuple[Path, Any]:
    folder, oracle = save_model("gemma3_text", sliding_window=24, num_hidden_layers=7)
    return folder, oracle


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_a_text_model_inside_a_larger_one(gemma3: tuple[Path, Any], tmp_path: Path, prefix: str) -> None:
    from safetensors.torch import load_file, save_file

    tensors = {
        name.replace("model.", prefix, 1): tensor
        for name, tensor in load_file(gemma3[0] / "model.safetensors").items()
    }
    tensors["vision_tower.patches.weight"] = torch.zeros(3)
    save_file(tensors, tmp_path / "model.safetensors")
    text = json.loads((gemma3[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    decoder, ids = load(tmp_path), prompt(50)
    wanted = expected(gemma3[1], ids)
    torch.testing.assert_close(logits(decoder, kernels(decoder), ids, [50]), wanted, atol=1e-4, rtol=1e-4)


def test_gemma3_in_the_older_spelling(gemma3: tuple[Path, Any], tmp_path: Path) -> None:
    """Scaling and theta are those of the layers without a window; the others have a field of their own."""
    from transformers import AutoConfig

    content = json.loads((gemma3[0] / "config.json").read_text())
    for name in ("rope_parameters", "layer_types"):
        content.pop(name)
    content |= {
        "rope_theta": 5e5,
        "rope_local_base_freq": 2e4,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window_pattern": 3,
    }
    (tmp_path / "config.json").write_text(json.dumps(content))
    theirs, ours = AutoConfig.from_pretrained(tmp_path), decoder_config(content)
    assert ours.window_rope is not None
    ropes = {"full_attention": ours.rope, "sliding_attention": ours.window_rope}
    for kind, rope in ropes.items():
        assert rope.theta == theirs.rope_parameters[kind]["rope_theta"]
    assert ours.rope.scaling is not None
    assert ours.window_rope.scaling is None
    sliding = {layer for layer, kind in enumerate(theirs.layer_types) if kind == "sliding_attention"}
    assert ours.window_layers == sliding == {0, 1, 3, 4, 6}

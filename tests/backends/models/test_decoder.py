"""The decoder's logits are those of `transformers`, however a prompt is cut into spans."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.kernels.layout import KVCache, Layout, Span
from backends.kernels.reference import Kernels
from backends.kernels.select import kernels_for
from backends.layers.rope import tables
from backends.models.checkpoint import open_checkpoint
from backends.models.decoder import Decoder
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config

BLOCK = 16
CPU = torch.device("cpu")

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500000.0,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": False}),
    "llama tied, 9 heads over 3": (
        "llama",
        {
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "hidden_size": 576,
            "tie_word_embeddings": True,
        },
    ),
    "llama 3.1": ("llama", {"rope_parameters": LLAMA3}),
    "llama with biases, one head each": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
    ),
    "qwen2": ("qwen2", {"tie_word_embeddings": False}),
    "qwen2 tied, 14 heads over 2": (
        "qwen2",
        {"num_attention_heads": 14, "head_dim": 64, "hidden_size": 896, "tie_word_embeddings": True},
    ),
    "qwen2, heads of 128": ("qwen2", {"num_attention_heads": 6, "head_dim": 128, "hidden_size": 768}),
}


@dataclass
class Sequence:
    """One sequence in a cache that held NaN before."""

    decoder: Decoder
    kernels: Kernels
    blocks: list[int]

    @classmethod
    def of(cls, decoder: Decoder, kernels: Callable[..., Kernels] = kernels_for) -> "Sequence":
        shape = decoder.config
        cache = KVCache(
            shape.layers, 16, BLOCK, shape.kv_heads, shape.head_dim, dtype=decoder.embedding.dtype
        )
        cache.keys.fill_(torch.nan)
        cache.values.fill_(torch.nan)
        angles = tables(shape.rope, shape.head_dim, 256)
        return cls(decoder, kernels(cache, *angles, shape.heads), list(range(15, -1, -1)))

    def logits(self, ids: list[int], chunks: list[int]) -> torch.Tensor:
        """Logits of all positions, computed in spans of the given lengths."""
        parts, start = [], 0
        for count in chunks:
            layout = Layout([Span(start, count, self.blocks)], self.kernels.cache)
            tokens = torch.tensor(ids[start : start + count])
            parts.append(self.decoder.forward(tokens, layout, torch.arange(count), self.kernels))
            start += count
        return torch.cat(parts)


@pytest.fixture(scope="module", params=MODELS.values(), ids=list(MODELS))
def model(request: pytest.FixtureRequest, save_model: Callable[..., tuple[Path, Any]]) -> tuple[Decoder, Any]:
    kind, fields = request.param
    folder, oracle = save_model(kind, **fields)
    checkpoint = open_checkpoint(folder)
    return load_decoder(checkpoint, decoder_config(checkpoint.config), torch.float32, CPU), oracle


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return random.Random(2).choices(range(199), k=100)


@pytest.fixture(scope="module")
def expected(model: tuple[Decoder, Any], ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model[1](torch.tensor([ids])).logits[0]
    return logits


@pytest.mark.parametrize(
    "chunks",
    [[100], [7] * 14 + [2], [32, 32, 32, 4], [40] + [1] * 60, [1] * 20 + [80]],
    ids=["whole", "chunks of 7", "chunks of 32", "decode after a prompt", "a chunk after decoding"],
)
def test_logits_equal_transformers(
    model: tuple[Decoder, Any], ids: list[int], expected: torch.Tensor, chunks: list[int]
) -> None:
    logits = Sequence.of(model[0]).logits(ids, chunks)
    assert logits.std() > 0.5  # the models are not flat
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_plain_torch_kernels_equal_transformers(
    model: tuple[Decoder, Any], ids: list[int], expected: torch.Tensor
) -> None:
    logits = Sequence.of(model[0], Kernels).logits(ids, [33, 1, 66])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)

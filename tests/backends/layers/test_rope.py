"""Frequencies equal those of `transformers`, for each kind of scaling."""

from typing import Any

import pytest
import torch

from backends.layers.rope import scaled, tables
from backends.layers.rotation import LinearScaling, Llama3Scaling, LongScaling, Rope, YarnScaling

LLAMA_31 = Llama3Scaling(8.0, 1.0, 4.0, 8192)
LLAMA_32 = Llama3Scaling(32.0, 1.0, 4.0, 8192)


def options(scaling: Llama3Scaling | LinearScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"rope_type": "default"}
    if isinstance(scaling, LinearScaling):
        return {"rope_type": "linear", "factor": scaling.factor}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_context,
    }


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("theta", [10000.0, 500000.0, 1000000.0])
@pytest.mark.parametrize("scaling", [None, LinearScaling(4.0), LLAMA_31, LLAMA_32])
def test_tables_equal_transformers(
    scaling: Llama3Scaling | LinearScaling | None, theta: float, head_dim: int
) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": theta, **options(scaling)},
    )
    positions = torch.tensor([0, 1, 2, 77, 4095, 8191])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    ours = tables(Rope(theta, scaling), head_dim, 8192)
    for table, expected in zip(ours, (cos, sin), strict=True):
        assert table.shape == (8192, head_dim // 2)
        # A frequency may differ in its last bit, which 8191 positions multiply.
        torch.testing.assert_close(table[positions], expected[0, :, : head_dim // 2], atol=1e-3, rtol=0)
        torch.testing.assert_close(table[:3], expected[0, :3, : head_dim // 2], atol=1e-6, rtol=0)


def test_llama3_keeps_short_waves_slows_long_ones_and_blends_between() -> None:
    plain = 2 * torch.pi / torch.tensor([100.0, 8192 / 4, 4000.0, 8192.0, 50000.0])  # by wavelength
    ratio = scaled(LLAMA_31, plain, 500000.0) / plain
    torch.testing.assert_close(ratio[[0, 1, 3, 4]], torch.tensor([1, 1, 1 / 8, 1 / 8]))
    assert 1 / 8 < ratio[2] < 1


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("yarn", {"factor": 4.0}),
        ("yarn", {"factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": False}),
        ("yarn", {"factor": 4.0, "attention_factor": 1.25, "beta_fast": 8.0, "beta_slow": 8.0}),
        ("yarn", {"factor": 1.0, "beta_fast": 1e9, "beta_slow": 1e-9}),
    ],
)
@pytest.mark.parametrize("theta", [10000.0, 1000000.0])
def test_yarn_equals_transformers(kind: str, options: dict[str, Any], theta: float) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_type": kind, "rope_theta": theta, "original_max_position_embeddings": 512, **options}
    config = LlamaConfig(head_dim=128, max_position_embeddings=2048, rope_parameters=parameters)
    oracle = LlamaRotaryEmbedding(config)
    scaling = YarnScaling(
        options["factor"],
        512,
        oracle.attention_scaling,
        options.get("beta_fast", 32.0),
        options.get("beta_slow", 1.0),
        options.get("truncate", True),
    )
    assert_tables(Rope(theta, scaling), oracle, 128, torch.tensor([0, 1, 511, 512, 2047]))


def test_longrope_equals_transformers_on_both_sides_of_the_border() -> None:
    from transformers import Phi3Config
    from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

    short, long = (tuple(1 + step * n / 48 for n in range(48)) for step in (0.5, 8.0))
    parameters = {"rope_type": "longrope", "short_factor": list(short), "long_factor": list(long)}
    config = Phi3Config(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=2048,
        original_max_position_embeddings=512,
        rope_parameters={**parameters, "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        pad_token_id=0,
    )
    oracle = Phi3RotaryEmbedding(config)
    rope = Rope(10000.0, LongScaling(short, long, 512, oracle.attention_scaling), 0.75)
    assert rope.border == 512
    assert_tables(rope, oracle, 128, torch.tensor([0, 1, 511]))  # 512 tokens, the last one at 511
    assert_tables(rope.stretched, oracle, 128, torch.tensor([0, 1, 512]))
    assert rope.stretched.stretched == rope.stretched
    assert Rope(10000.0).stretched == Rope(10000.0)


def assert_tables(rope: Rope, oracle: Any, head_dim: int, positions: torch.Tensor) -> None:
    """The oracle's factors depend on the largest of the positions."""
    cos, sin = oracle(torch.zeros(1), positions[None])
    for table, expected in zip(tables(rope, head_dim, 2048), (cos, sin), strict=True):
        assert table.shape == (2048, rope.rotated(head_dim) // 2)
        torch.testing.assert_close(table[positions], expected[0, :, : table.shape[1]], atol=3e-4, rtol=0)

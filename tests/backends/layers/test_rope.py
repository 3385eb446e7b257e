"""Frequencies equal those of `transformers`, for each kind of scaling."""

from typing import Any

import pytest
import torch

from backends.layers.rope import LinearScaling, Llama3Scaling, Rope

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
    ours = Rope(theta, scaling).tables(head_dim, 8192)
    for table, expected in zip(ours, (cos, sin), strict=True):
        assert table.shape == (8192, head_dim // 2)
        # A frequency may differ in its last bit, which 8191 positions multiply.
        torch.testing.assert_close(table[positions], expected[0, :, : head_dim // 2], atol=1e-3, rtol=0)
        torch.testing.assert_close(table[:3], expected[0, :3, : head_dim // 2], atol=1e-6, rtol=0)


def test_llama3_keeps_short_waves_slows_long_ones_and_blends_between() -> None:
    plain = 2 * torch.pi / torch.tensor([100.0, 8192 / 4, 4000.0, 8192.0, 50000.0])  # by wavelength
    ratio = LLAMA_31.scale(plain, 500000.0) / plain
    torch.testing.assert_close(ratio[[0, 1, 3, 4]], torch.tensor([1, 1, 1 / 8, 1 / 8]))
    assert 1 / 8 < ratio[2] < 1

"""Norms and gates equal plain torch."""

import pytest
import torch

from backends.kernels.cuda import Cuda
from backends.kernels.layout import KVCache
from backends.kernels.reference import Kernels

F32, F16 = torch.float32, torch.float16
TOLERANCE = {F32: {"rtol": 1e-5, "atol": 1e-6}, F16: {"rtol": 2e-3, "atol": 1e-5}}
HEADS, KV_HEADS, SIZE = 6, 2, 20


@pytest.fixture(scope="module")
def both() -> tuple[Kernels, Kernels]:
    cache, table = KVCache(1, 1, 16, KV_HEADS, SIZE, dtype=F32), torch.zeros(16, SIZE // 2)
    return Kernels(cache, table, table, HEADS), Cuda(cache, table, table, HEADS)


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("width", [77, 128])
def test_the_norm_of_the_residual_stream(
    both: tuple[Kernels, Kernels], width: int, dtype: torch.dtype
) -> None:
    """The stream itself bit by bit; weights around 1, as those of Gemma are once 1 is added to them."""
    residuals = [torch.linspace(-9, 9, 3 * width).view(3, width) for _ in both]
    update, weight = torch.randn(3, width).to(dtype), 1 + torch.randn(width)
    plain, ours = (
        kernels.add_norm(residual, update, weight, 1e-5)
        for kernels, residual in zip(both, residuals, strict=True)
    )
    assert torch.equal(*residuals)
    torch.testing.assert_close(ours, plain, **TOLERANCE[dtype])
    plain, ours = (kernels.norm(update, weight, 1e-5) for kernels in both)
    torch.testing.assert_close(ours, plain, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_the_norm_of_heads_leaves_values_alone(both: tuple[Kernels, Kernels], dtype: torch.dtype) -> None:
    qkv = torch.randn(2, (HEADS + 2 * KV_HEADS) * SIZE).to(dtype)
    weights = torch.rand(SIZE), torch.rand(SIZE)
    plain, ours = qkv.clone(), qkv.clone()
    for kernels, out in zip(both, (plain, ours), strict=True):
        kernels.norm_heads(out, *weights, eps=1e-6)
    torch.testing.assert_close(ours, plain, **TOLERANCE[dtype])
    assert torch.equal(ours[:, -KV_HEADS * SIZE :], qkv[:, -KV_HEADS * SIZE :])


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("gate", ["silu_mul", "gelu_mul"])
def test_gates(both: tuple[Kernels, Kernels], gate: str, dtype: torch.dtype) -> None:
    """Wide enough for two programs a row, loud enough that the exponential saturates."""
    gate_up = (torch.randn(2, 2 * 1030) * 60).to(dtype)
    plain, ours = (getattr(kernels, gate)(gate_up) for kernels in both)
    # torch's gelu cancels for gates far below 0
    torch.testing.assert_close(ours, plain, rtol=2e-3 if dtype == F16 else 1e-5, atol=2e-3)

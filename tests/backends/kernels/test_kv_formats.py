"""Keys and values in eight bits: how far they are off, what is kept exactly, and what never comes out."""

import pytest
import torch

from backends.kernels.kv_formats import LARGEST, dequantize, quantize
from backends.kernels.layout import KVCache, Layout, Span
from backends.kernels.reference import Kernels

DTYPES = list(LARGEST)
# Of the largest number of a vector: half a step of int8; half a step of three bits of mantissa, at its worst.
WORST = {torch.int8: 0.5 / 127, torch.float8_e4m3fn: 16 / 448}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_vector_comes_back_within_half_a_step_of_its_own_scale(dtype: torch.dtype, size: float) -> None:
    """The vectors beside it, a thousand times louder, do not matter."""
    x = torch.randn(5, 3, 80) * size
    x[1] *= 1000
    codes, scales = quantize(x, dtype)
    assert codes.dtype == dtype and scales.dtype == torch.float32
    off = (dequantize(codes, scales) - x).abs() / x.abs().amax(-1, keepdim=True)
    assert off.max() <= WORST[dtype] * (1 + 1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_vectors_of_zeros_and_of_the_smallest_numbers_are_finite(dtype: torch.dtype) -> None:
    x = torch.zeros(2, 4)
    x[1] = 1e-38
    assert torch.equal(dequantize(*quantize(x, dtype)), torch.zeros(2, 4))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_largest_number_is_kept_exactly(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.5, -127.0, 3.0]])
    assert dequantize(*quantize(x, dtype))[0, 1] == -127


@pytest.mark.parametrize(("dtype", "bytes_each"), [(torch.int8, 1), (torch.bfloat16, 2), (torch.float32, 4)])
def test_what_a_cache_takes(dtype: torch.dtype, bytes_each: int) -> None:
    cache = KVCache(2, 3, 16, 4, 64, dtype=dtype)
    places = 2 * 3 * 16 * 4
    scales = [each for each in (cache.key_scales, cache.value_scales) if each is not None]
    assert cache.keys.nbytes + cache.values.nbytes == 2 * places * 64 * bytes_each
    assert sum(each.nbytes for each in scales) == (2 * places * 4 if bytes_each == 1 else 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_over_eight_bits_is_near_that_over_all(dtype: torch.dtype) -> None:
    """Two chunks, so that the second one reads what the first has written."""
    torch.manual_seed(1)
    table = torch.zeros(40, 8)
    qkv = torch.randn(40, 8 * 16)
    outs = []
    for kind in (torch.float32, dtype):
        kernels = Kernels(KVCache(1, 4, 16, 2, 16, dtype=kind), table + 1, table, 4)
        chunks = [Span(0, 30, [2, 0]), Span(30, 10, [2, 0, 3])]
        parts = [
            kernels.attention(0, qkv[span.start : span.stop].clone(), Layout([span], kernels.cache))
            for span in chunks
        ]
        outs.append(torch.cat(parts))
    assert not torch.equal(*outs)
    torch.testing.assert_close(*outs, atol=0.02 if dtype == torch.int8 else 0.09, rtol=0)

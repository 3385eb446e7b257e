"""Rotation and the way into the cache equal plain torch, the cache bit by bit where nothing is rotated."""

import pytest
import torch

from backends.kernels.cuda import Cuda
from backends.kernels.device_batch import DeviceBatch
from backends.kernels.layout import KVCache, LayerRule, Layout, Scheme, Span
from backends.kernels.reference import Kernels

F32, F16 = torch.float32, torch.float16
SLOW = pytest.mark.slow
SPANS = [Span(0, 1, [4]), Span(17, 2, [6, 2], shift=30), Span(15, 2, [0, 5])]
POSITIONS = 30


def run(
    kind: type[Kernels],
    size: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    part: int,
    angles: int | None,
    heads: tuple[int, int],
) -> tuple[torch.Tensor, KVCache]:
    """The rotated queries and the cache, whose unwritten places hold zeros."""
    noise = torch.Generator().manual_seed(size)
    cache = KVCache(2, 7, 16, heads[1], size, dtype=cache_dtype)
    for tensor in (cache.keys, cache.values, cache.key_scales, cache.value_scales):
        if tensor is not None:
            tensor.view(torch.uint8).zero_()
    turns = torch.rand(3 * POSITIONS, part // 2, generator=noise) * 6
    scheme = Scheme(rules=[LayerRule(angles)] * 2)
    kernels = kind(cache, turns.cos(), turns.sin(), heads[0], scheme)
    qkv = torch.randn(5, (heads[0] + 2 * heads[1]) * size, generator=noise).to(dtype)
    qkv[0] = 0  # all its vectors
    return kernels.rotate_store(1, qkv, Layout(SPANS, cache)), cache


@pytest.mark.parametrize("dtype", [F32, pytest.param(F16, marks=SLOW)], ids=str)
@pytest.mark.parametrize(
    ("size", "part", "angles", "heads"),
    [
        (80, 32, POSITIONS, (3, 1)),
        (20, 20, None, (7, 1)),
        pytest.param(64, 64, 0, (4, 4), marks=SLOW),
        pytest.param(96, 96, 0, (2, 2), marks=SLOW),
    ],
)
def test_it_equals_plain_torch(
    size: int, part: int, angles: int | None, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    (q, cache), (own_q, own) = (
        run(kind, size, dtype, dtype, part, angles, heads) for kind in (Kernels, Cuda)
    )
    tolerance = {"rtol": 0.0, "atol": 1e-6 if dtype == F32 else 2e-3}
    torch.testing.assert_close(own_q, q, **tolerance)
    torch.testing.assert_close(own.keys, cache.keys, **tolerance)
    assert torch.equal(own.values, cache.values)


@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(("size", "part"), [(80, 32), pytest.param(64, 64, marks=SLOW)])
def test_eight_bits_are_those_of_plain_torch(size: int, part: int, cache_dtype: torch.dtype) -> None:
    """Bit by bit; without a rotation, which rounds as its sum is ordered."""
    (_, cache), (_, own) = (run(kind, size, F32, cache_dtype, part, None, (2, 1)) for kind in (Kernels, Cuda))
    for ours, plain in (
        (own.keys, cache.keys),
        (own.values, cache.values),
        (own.key_scales, cache.key_scales),
        (own.value_scales, cache.value_scales),
    ):
        assert ours is not None and plain is not None
        assert torch.equal(ours.view(torch.uint8), plain.view(torch.uint8))


def test_every_code_of_float8_is_met() -> None:
    """Numbers between all neighbours of float8, so that each tie and each exponent is rounded."""
    exact = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    between = torch.cat([exact[:-1] * (1 - by) + exact[1:] * by for by in (0.0, 0.25, 0.5, 0.75)])
    numbers = torch.cat([between, -between, torch.full((16,), 448.0)])
    size = 256
    numbers = torch.nn.functional.pad(numbers, (0, -len(numbers) % size)).view(-1, size)
    numbers[:, -1] = 448.0  # so that scales are 1
    count = len(numbers)
    codes = []
    for kind in (Kernels, Cuda):
        cache = KVCache(1, 1, 16, 1, size, dtype=torch.float8_e4m3fn)
        table = torch.zeros(16, size // 2)
        kernels = kind(cache, table, table, 1, Scheme(rules=[LayerRule(None)]))
        qkv = torch.cat([numbers, numbers, numbers], 1)
        kernels.rotate_store(0, qkv, Layout([Span(0, count, [0])], cache))
        codes.append(cache.keys[0, 0, :count].view(torch.uint8).clone())
    assert torch.equal(*codes)
    assert len(codes[0].unique()) > 250


def test_nothing_is_stored_of_tokens_that_are_none() -> None:
    cache = KVCache(1, 3, 16, 1, 32, dtype=F32)
    cache.keys.zero_()
    cache.values.zero_()
    table = torch.ones(16, 16)
    layout = Layout([Span(0, 1, [0]), Span(0, 1, [2])], cache)
    layout.device_batch = DeviceBatch.of(layout, 8, 8, 16)
    layout.device_batch.positions[1] = -1
    layout.device_batch.tables[1] = 10**6
    Cuda(cache, table, table, 2).rotate_store(0, torch.ones(2, 4 * 32), layout)
    written = cache.keys.flatten(1).view(3, 16, 32).any(-1).nonzero().tolist()
    assert written == [[0, 0]]

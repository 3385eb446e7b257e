"""The loops for CPUs equal plain torch, over caches that hold NaN wherever nothing was written."""

from collections.abc import Sequence

import pytest
import torch

from backends.kernels.cpu import Cpu
from backends.kernels.layout import KVCache, Layout, Span
from backends.kernels.reference import Kernels

# Of bfloat16 two units in the last place of numbers below 2.
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2}

SPANS = {
    "first token": [(0, 1)],
    "decode, ragged": [(0, 1), (15, 1), (16, 1), (200, 1), (33, 1)],
    "short chunks": [(0, 3), (14, 5), (31, 2)],
    "long chunks": [(0, 40), (7, 64), (16, 16), (130, 33)],
    "all at once": [(40, 1), (0, 17), (21, 1), (15, 2), (100, 30), (0, 1)],
}


class Case:
    """Two equal caches with random history, and the projections of one batch."""

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        size: int,
        dtype: torch.dtype,
        spans: Sequence[tuple[int, int]],
        block_size: int = 16,
    ) -> None:
        noise = torch.Generator().manual_seed(heads * size)
        self.heads = heads
        needed = [-(-(start + count) // block_size) for start, count in spans]
        free = iter(torch.randperm(sum(needed) + 1, generator=noise).tolist())
        self.spans = [
            Span(start, count, [next(free) for _ in range(n)])
            for (start, count), n in zip(spans, needed, strict=True)
        ]
        self.caches = [KVCache(2, sum(needed) + 1, block_size, kv_heads, size, dtype=dtype) for _ in range(2)]
        self.layout = Layout(self.spans, self.caches[0])
        for side in ("keys", "values"):
            self._fill([getattr(cache, side) for cache in self.caches], noise)
        angles = torch.rand(512, size // 2, generator=noise) * 6
        self.tables = angles.cos(), angles.sin()
        tokens = sum(span.count for span in self.spans)
        self.qkv = torch.randn(tokens, (heads + 2 * kv_heads) * size, generator=noise).to(dtype)

    def _fill(self, sides: list[torch.Tensor], noise: torch.Generator) -> None:
        for side in sides:
            side.fill_(torch.nan)
        for span in self.spans:
            for position in range(span.start):
                block, offset = span.blocks[position // side.shape[2]], position % side.shape[2]
                written = torch.randn(side.shape[3:], generator=noise).to(side.dtype)
                for side in sides:
                    side[1, block, offset] = written

    def run(self, kind: type[Kernels], cache: KVCache) -> torch.Tensor:
        return kind(cache, *self.tables, self.heads).attention(1, self.qkv.clone(), self.layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("spans", SPANS.values(), ids=list(SPANS))
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (9, 3), (12, 3), (14, 2)])
@pytest.mark.parametrize("size", [64, 128])
def test_attention(
    heads: int, kv_heads: int, size: int, spans: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    case = Case(heads, kv_heads, size, dtype, spans)
    expected, ours = case.run(Kernels, case.caches[0]), case.run(Cpu, case.caches[1])
    torch.testing.assert_close(ours.float(), expected.float(), atol=TOLERANCE[dtype], rtol=0)
    _assert_same_cache(*case.caches)


@pytest.mark.parametrize("block_size", [1, 3, 32])
@pytest.mark.parametrize("size", [2, 20, 80])
def test_attention_with_odd_sizes(block_size: int, size: int) -> None:
    case = Case(6, 2, size, torch.float32, SPANS["all at once"], block_size)
    expected, ours = case.run(Kernels, case.caches[0]), case.run(Cpu, case.caches[1])
    torch.testing.assert_close(ours, expected, atol=2e-6, rtol=0)
    _assert_same_cache(*case.caches)


def test_only_the_tokens_own_places_are_written() -> None:
    case = Case(4, 2, 64, torch.float32, SPANS["all at once"])
    before, cache = case.caches
    case.run(Cpu, cache)
    blocks, offsets = case.layout.places
    own = torch.zeros(cache.keys.shape[:3], dtype=torch.bool)
    own[1, blocks, offsets] = True
    for now, then in ((cache.keys, before.keys), (cache.values, before.values)):
        torch.testing.assert_close(now[~own], then[~own], rtol=0, atol=0, equal_nan=True)
        assert now[own].isfinite().all()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Bit by bit: alone and among others, at one thread and at two."""
    spans = SPANS["all at once"]
    case = Case(9, 3, 64, torch.bfloat16, spans)
    together = case.run(Cpu, case.caches[0])
    for index, span in enumerate(case.spans):
        tokens = case.layout.tokens(index)
        layout = Layout([span], case.caches[1])
        kernels = Cpu(case.caches[1], *case.tables, 9)
        alone = kernels.attention(1, case.qkv[tokens].clone(), layout)
        torch.testing.assert_close(alone, together[tokens], rtol=0, atol=0)


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_norm_and_activation(rows: int, dtype: torch.dtype) -> None:
    case = Case(2, 1, 8, dtype, [(0, 1)])
    plain, ours = (kind(case.caches[0], *case.tables, 2) for kind in (Kernels, Cpu))
    residuals = [torch.linspace(-9, 9, rows * 77).view(rows, 77) for _ in range(2)]
    update, weight = torch.randn(rows, 77).to(dtype), torch.randn(77)
    outs = [
        kernels.add_norm(residual, update, weight, 1e-5)
        for kernels, residual in zip((plain, ours), residuals, strict=True)
    ]
    torch.testing.assert_close(*residuals, rtol=0, atol=0)
    torch.testing.assert_close(*outs, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)
    gate_up = (torch.randn(rows, 2 * 77) * 60).to(dtype)  # large enough that the exponential saturates
    torch.testing.assert_close(ours.silu_mul(gate_up), plain.silu_mul(gate_up))


def _assert_same_cache(one: KVCache, other: KVCache) -> None:
    """Written at the same places; equal but for the order of a sum in the rotation."""
    for ours, theirs in ((one.keys, other.keys), (one.values, other.values)):
        torch.testing.assert_close(ours, theirs, equal_nan=True)

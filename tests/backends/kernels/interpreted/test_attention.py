"""Paged attention equals plain torch, over caches that hold NaN wherever nothing was written.

float32 and float16 only: the interpreter multiplies bfloat16's bit patterns (triton-lang/triton#11584).
"""

import pytest
import torch

from backends.kernels import triton_attention
from backends.kernels.cuda import Cuda
from backends.kernels.device_batch import DeviceBatch
from backends.kernels.layout import KVCache, LayerRule, Layout, Scheme, Span
from backends.kernels.reference import Kernels

F32, F16 = torch.float32, torch.float16
SLOW = pytest.mark.slow
DECODE = [(0, 1), (70, 1), (31, 1)]
MIXED = [(0, 1), (33, 3), (20, 18), (70, 1), (0, 40)]
# heads, kv_heads, head size, block size, type, window, soft cap, spans
CASES = [
    pytest.param(2, 2, 64, 16, F32, None, None, MIXED, marks=SLOW),
    pytest.param(4, 1, 80, 32, F32, None, None, MIXED, marks=SLOW),
    (7, 1, 64, 16, F16, None, None, DECODE),
    (8, 1, 128, 16, F16, None, None, [(40, 20)]),
    (3, 1, 96, 16, F16, 9, None, MIXED),
    (2, 1, 256, 16, F16, None, 20.0, [(5, 1), (3, 17)]),
    pytest.param(6, 2, 20, 5, F32, 7, None, MIXED, marks=SLOW),
    (2, 1, 64, 16, F32, 33, 5.0, [(500, 1), (100, 20)]),
    (2, 2, 32, 16, F16, 1, None, [(50, 1), (47, 20)]),
]


@pytest.fixture(autouse=True)
def few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one tile of keys and more: a program takes milliseconds here."""
    monkeypatch.setattr(triton_attention, "PIECES", 2)
    monkeypatch.setattr(triton_attention, "LEAST_PIECE", 1)


class Case:
    """A batch over a cache with a random history, and its queries."""

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        size: int,
        block: int,
        dtype: torch.dtype,
        spans: list[tuple[int, int]],
        cache_dtype: torch.dtype | None = None,
        spare: int = 1,
    ) -> None:
        noise = torch.Generator().manual_seed(size)
        needed = [-(-(start + count) // block) for start, count in spans]
        blocks = sum(needed) + spare
        free = iter((blocks - 1 - torch.randperm(sum(needed), generator=noise)).tolist())  # the last ones
        self.spans = [
            Span(start, count, [next(free) for _ in range(n)])
            for (start, count), n in zip(spans, needed, strict=True)
        ]
        self.heads = heads
        self.cache = KVCache(2, blocks, block, kv_heads, size, dtype=cache_dtype or dtype)
        if cache_dtype is None:
            self.cache.keys.fill_(torch.nan)
            self.cache.values.fill_(torch.nan)
        else:
            for side in (self.cache.keys, self.cache.values):
                side.view(torch.uint8).fill_(0x7F)  # float8's NaN
        for scales in (self.cache.key_scales, self.cache.value_scales):
            if scales is not None:
                scales.fill_(torch.nan)
        self.layout = Layout(self.spans, self.cache)
        for span in self.spans:
            history = Layout([Span(0, span.stop, span.blocks)], self.cache)
            pair = torch.randn(2, span.stop, kv_heads, size, generator=noise)
            self.cache.write(1, history.places, *pair.to(dtype))
        self.q = torch.randn(len(self.layout.rows), heads, size, generator=noise).to(dtype)

    def attend(self, kind: type[Kernels], scheme: Scheme, layout: Layout | None = None) -> torch.Tensor:
        table = torch.zeros(600, self.q.shape[-1] // 2)
        kernels = kind(self.cache, table, table, self.heads, scheme)
        return kernels.attend(1, self.q, layout or self.layout)


def scheme(window: int | None = None, cap: float | None = None) -> Scheme:
    return Scheme(soft_cap=cap, rules=[LayerRule(window=window)] * 2)


@pytest.mark.parametrize(("heads", "kv_heads", "size", "block", "dtype", "window", "cap", "spans"), CASES)
def test_it_equals_plain_torch(
    heads: int,
    kv_heads: int,
    size: int,
    block: int,
    dtype: torch.dtype,
    window: int | None,
    cap: float | None,
    spans: list[tuple[int, int]],
) -> None:
    case = Case(heads, kv_heads, size, block, dtype, spans)
    ours, plain = (case.attend(kind, scheme(window, cap)) for kind in (Cuda, Kernels))
    torch.testing.assert_close(ours, plain, atol=2e-6 if dtype == F32 else 4e-3, rtol=0)


@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(("dtype", "window"), [(F16, 20), pytest.param(F32, None, marks=SLOW)])
def test_eight_bits_equal_plain_torch(
    cache_dtype: torch.dtype, dtype: torch.dtype, window: int | None
) -> None:
    """Over the same codes and scales."""
    case = Case(3, 1, 80, 16, dtype, [(33, 2), (20, 18)], cache_dtype)
    ours, plain = (case.attend(kind, scheme(window)) for kind in (Cuda, Kernels))
    torch.testing.assert_close(ours, plain, atol=2e-6 if dtype == F32 else 6e-3, rtol=0)


@pytest.mark.parametrize("window", [300, pytest.param(None, marks=SLOW)])
def test_a_long_context_is_shared_out_and_merged(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the pieces are empty."""
    monkeypatch.setattr(triton_attention, "PIECES", 8)
    case = Case(2, 1, 32, 16, F32, [(990, 1), (70, 2), (0, 1)])
    ours, plain = (case.attend(kind, scheme(window)) for kind in (Cuda, Kernels))
    torch.testing.assert_close(ours, plain, atol=2e-6, rtol=0)


def test_a_token_gets_the_same_answer_in_any_company() -> None:
    """Bit by bit: decoded alone, among others, and beside a chunk."""
    case = Case(2, 1, 32, 16, F32, [(200, 1), (0, 20), (40, 1)])
    together = case.attend(Cuda, scheme())
    for index in (0, 2):
        tokens = case.layout.tokens(index)
        table = torch.zeros(600, 16)
        alone = Cuda(case.cache, table, table, 2, scheme()).attend(
            1, case.q[tokens], Layout([case.spans[index]], case.cache)
        )
        assert torch.equal(alone, together[tokens])


def test_tokens_that_are_none_get_zeros() -> None:
    """What pads a batch: position -1, whatever its table says."""
    case = Case(2, 1, 32, 16, F32, [(10, 1), (0, 1)])
    batch = DeviceBatch.of(case.layout, short=8, long=8, border=16)
    batch.positions[1] = -1
    batch.tables[1] = 10**6
    case.layout.device_batch = batch
    out = case.attend(Cuda, scheme())
    expected = case.attend(Kernels, scheme())
    torch.testing.assert_close(out[0], expected[0], atol=2e-6, rtol=0)
    assert not out[1].any()


def test_blocks_far_into_a_large_pool() -> None:
    """Places beyond 2**31 numbers from the first: as lazily allocated memory, of which little is touched."""
    size, block = 128, 16
    blocks = 2**31 // (block * size) + 9
    cache = KVCache(1, blocks, block, 1, size, dtype=F16)
    layout = Layout([Span(17, 1, [blocks - 1, blocks - 3])], cache)
    history = Layout([Span(0, 18, [blocks - 1, blocks - 3])], cache)
    cache.write(0, history.places, *torch.randn(2, 18, 1, size).half())
    q, table = torch.randn(1, 2, size).half(), torch.zeros(20, size // 2)
    ours, plain = (kind(cache, table, table, 2).attend(0, q, layout) for kind in (Cuda, Kernels))
    torch.testing.assert_close(ours, plain, atol=4e-3, rtol=0)

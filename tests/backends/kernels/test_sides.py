"""A cache in another type than is computed in: what is stored and what attention makes of it, as plain torch does."""

import pytest
import torch

from backends.kernels.cached import FEW
from backends.kernels.cpu import Cpu
from backends.kernels.kv_formats import RECORDS, dequantize
from backends.kernels.kv_int4 import decode
from backends.kernels.layout import KVCache, LayerRule, Layout, Scheme, Span
from backends.kernels.reference import Kernels

HEADS, KV_HEADS, BLOCK = 6, 2, 16
# Each pair is compiled by itself, which takes as long as all its tests do.
TYPES = [
    (torch.float32, torch.int8),
    (torch.float32, RECORDS),
    (torch.float32, torch.bfloat16),
    pytest.param(torch.bfloat16, torch.int8, marks=pytest.mark.slow),
    pytest.param(torch.bfloat16, RECORDS, marks=pytest.mark.slow),
    pytest.param(torch.bfloat16, torch.float32, marks=pytest.mark.slow),
]
TOLERANCE = {torch.float32: 2.5e-5, torch.bfloat16: 5e-2}  # of values up to 6
# Single tokens, drafts, chunks that few queries and many fill, at the beginning and after prefixes of several parts.
SPANS = [(40, 1), (0, 17), (1100, 1), (15, 5), (700, 45), (0, 1), (1300, 4)]


class Case:
    """Two equal caches, whose history is written by plain torch, and the projections of one batch."""

    def __init__(self, computed: torch.dtype, kept: torch.dtype, size: int) -> None:
        noise = torch.Generator().manual_seed(size)
        needed = [-(-(start + count) // BLOCK) for start, count in SPANS]
        blocks = iter(torch.randperm(sum(needed), generator=noise).tolist())
        self.spans = [
            Span(start, count, [next(blocks) for _ in range(n)])
            for (start, count), n in zip(SPANS, needed, strict=True)
        ]
        self.caches = [KVCache(2, sum(needed), BLOCK, KV_HEADS, size, dtype=kept) for _ in range(2)]
        self.size = size
        self.tables = torch.ones(2000, size // 2), torch.zeros(2000, size // 2)
        self.qkv = self._projections(sum(count for _, count in SPANS), noise).to(computed)
        history = [Span(0, span.start, span.blocks) for span in self.spans if span.start]
        written = self._projections(sum(span.count for span in history), noise).to(computed)
        for cache in self.caches:
            for side in (cache.keys, cache.values, cache.key_scales, cache.value_scales):
                if side is not None:
                    side.fill_(torch.nan if side.is_floating_point() else 99)
            Kernels(cache, *self.tables, HEADS).rotate_store(1, written.clone(), Layout(history, cache))

    def _projections(self, tokens: int, noise: torch.Generator) -> torch.Tensor:
        x = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * self.size, generator=noise)
        return x * torch.rand(tokens, 1, generator=noise) * 2  # loud ones beside quiet ones

    def run(self, kind: type[Kernels], cache: KVCache, scheme: Scheme, spans: list[Span]) -> torch.Tensor:
        layout = Layout(spans, cache)
        rows = [self.spans.index(span) for span in spans]
        whole = Layout(self.spans, cache)
        qkv = torch.cat([self.qkv[whole.tokens(row)] for row in rows])
        return kind(cache, *self.tables, HEADS, scheme).attention(1, qkv, layout).float()


@pytest.mark.parametrize(("computed", "kept"), TYPES, ids=str)
@pytest.mark.parametrize("size", [20, 64])
@pytest.mark.parametrize(("window", "cap"), [(None, None), (30, None), (600, 2.0)])
def test_equal_to_plain_torch(
    computed: torch.dtype, kept: torch.dtype, size: int, window: int | None, cap: float | None
) -> None:
    case = Case(computed, kept, size)
    scheme = Scheme(scale=0.3, soft_cap=cap, rules=[LayerRule(window=window)] * 2)
    expected, ours = (
        case.run(kind, cache, scheme, case.spans)
        for kind, cache in zip((Kernels, Cpu), case.caches, strict=True)
    )
    torch.testing.assert_close(ours, expected, atol=TOLERANCE[computed], rtol=0)
    one, other = case.caches
    for name in ("keys", "values", "key_scales", "value_scales"):
        torch.testing.assert_close(getattr(other, name), getattr(one, name), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("computed", "kept"), TYPES, ids=str)
def test_a_row_does_not_depend_on_its_neighbours(computed: torch.dtype, kept: torch.dtype) -> None:
    case = Case(computed, kept, 64)
    together = case.run(Cpu, case.caches[0], Scheme(), case.spans)
    for row, span in enumerate(case.spans):
        alone = case.run(Cpu, case.caches[1], Scheme(), [span])
        tokens = Layout(case.spans, case.caches[0]).tokens(row)
        torch.testing.assert_close(alone, together[tokens], rtol=0, atol=0)


@pytest.mark.parametrize(("computed", "kept"), TYPES, ids=str)
@pytest.mark.parametrize("size", [24, 64, 80, 96, 128, 256])
def test_few_queries_and_many_say_the_same_bits(computed: torch.dtype, kept: torch.dtype, size: int) -> None:
    """Few at a time are multiplied in other registers than many are."""
    noise, start, count = torch.Generator().manual_seed(size), 70, 12
    blocks = torch.randperm(8, generator=noise).tolist()
    tables = torch.ones(100, size // 2), torch.zeros(100, size // 2)
    for group in range(1, FEW + 1):
        cache = KVCache(1, 8, BLOCK, KV_HEADS, size, dtype=kept)
        kernels = Cpu(cache, *tables, group * KV_HEADS)
        qkv = torch.randn(start + count, (group + 2) * KV_HEADS * size, generator=noise).to(computed)
        kernels.attention(0, qkv[:start].clone(), Layout([Span(0, start, blocks)], cache))
        many = kernels.attention(0, qkv[start:].clone(), Layout([Span(start, count, blocks)], cache))
        for token in range(count):
            at = start + token
            one = kernels.attention(0, qkv[at : at + 1].clone(), Layout([Span(at, 1, blocks)], cache))
            assert torch.equal(one[0], many[token]), (group, token)


def stored(vector: torch.Tensor, kept: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """What the caches of plain torch and of the loops hold of one value."""
    found = []
    for kind in (Kernels, Cpu):
        cache = KVCache(1, 1, 1, 1, len(vector), dtype=kept)
        qkv = torch.cat([torch.zeros(2, len(vector)), vector[None]]).view(1, -1)
        table = torch.zeros(1, len(vector) // 2)
        kind(cache, table + 1, table, 1).attention(0, qkv, Layout([Span(0, 1, [0])], cache))
        if cache.value_scales is None:
            found.append(decode(cache.values, len(vector)).view(-1))
        else:
            found.append(dequantize(cache.values, cache.value_scales).view(-1))
    return found[0], found[1]


@pytest.mark.parametrize("kept", [torch.int8, RECORDS], ids=str)
@pytest.mark.parametrize(
    "vector",
    [
        [0.0, 0.0, 0.0, 0.0],
        [1e-38, 0.0, -1e-38, 0.0],
        [127.0, -126.5, 125.5, 0.5],  # halves go to the even code
        [-1e30, 1.0, 1e29, 0.0],
        [7.5, 7.5, 7.5, 7.5],
        [0.0, 15.0, 0.5, 2.5],
        [1000.0, 1001.0, 1003.0, 1000.5],  # the least number is rounded upwards
    ],
)
def test_codes_are_those_of_plain_torch(vector: list[float], kept: torch.dtype) -> None:
    expected, ours = stored(torch.tensor(vector), kept)
    assert torch.equal(ours, expected) and ours.isfinite().all()


@pytest.mark.parametrize("kept", [torch.int8, RECORDS], ids=str)
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_hidden(broken: float, kept: torch.dtype) -> None:
    _, ours = stored(torch.tensor([1.0, broken, 2.0, 3.0]), kept)
    assert ours.isnan().any()


def test_eight_bits_take_a_quarter_and_bfloat16_a_half() -> None:
    def size(dtype: torch.dtype) -> int:
        cache = KVCache(2, 8, BLOCK, KV_HEADS, 64, dtype=dtype)
        sides = (cache.keys, cache.values, cache.key_scales, cache.value_scales)
        return sum(side.nbytes for side in sides if side is not None)

    assert size(torch.bfloat16) / size(torch.float32) == 1 / 2
    assert size(torch.int8) / size(torch.float32) == (64 + 4) / (4 * 64)

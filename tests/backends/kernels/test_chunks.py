"""Chunks over long prefixes: cut into pieces that miss nothing, and equal to plain torch however they are cut."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.kernels import chunks
from backends.kernels.chunks import LANES, PART, Plan, cut
from backends.kernels.cpu import CHUNK, COPIED, Cpu
from backends.kernels.layout import KVCache, LayerRule, Layout, Scheme, Span
from backends.kernels.reference import Kernels

HEADS, KV_HEADS, SIZE, BLOCK = 6, 2, 24, 16
SPANS = [(1500, CHUNK), (3, 1), (1100, 45), (0, 127), (2, 5), (700, 20)]
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2}


class Case:
    """Sequences with a random history in a shuffled cache, and the projections of their next tokens."""

    def __init__(self, dtype: torch.dtype, spans: list[tuple[int, int]]) -> None:
        noise = torch.Generator().manual_seed(5)
        needed = [-(-(start + count) // BLOCK) for start, count in spans]
        blocks = iter(torch.randperm(sum(needed), generator=noise).tolist())
        self.spans = [
            Span(start, count, [next(blocks) for _ in range(n)])
            for (start, count), n in zip(spans, needed, strict=True)
        ]
        self.cache = KVCache(1, sum(needed), BLOCK, KV_HEADS, SIZE, dtype=dtype)
        for side in (self.cache.keys, self.cache.values):
            side.copy_(torch.randn(side.shape, generator=noise))
        angles = torch.rand(2000, SIZE // 2, generator=noise) * 6
        self.tables = angles.cos(), angles.sin()
        width = (HEADS + 2 * KV_HEADS) * SIZE
        self.qkv = torch.randn(sum(count for _, count in spans), width, generator=noise).to(dtype)

    def run(self, kind: type[Kernels], scheme: Scheme, spans: list[Span] | None = None) -> torch.Tensor:
        kernels = kind(self.cache, *self.tables, HEADS, scheme)
        layout = Layout(spans or self.spans, self.cache)
        return kernels.attention(0, self.qkv.clone(), layout).float()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 30, 600])
def test_equal_to_plain_torch_after_long_prefixes(
    window: int | None, cap: float | None, dtype: torch.dtype
) -> None:
    case = Case(dtype, SPANS)
    scheme = Scheme(scale=0.3, soft_cap=cap, rules=[LayerRule(window=window)])
    expected, ours = case.run(Kernels, scheme), case.run(Cpu, scheme)
    torch.testing.assert_close(ours, expected, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("size", [1, CHUNK - 1, CHUNK, 7, 50, COPIED])
def test_however_a_prompt_is_cut(size: int) -> None:
    start, count = 900, COPIED + 50
    case = Case(torch.float32, [(start, count)])
    whole = case.run(Cpu, Scheme())
    blocks = case.spans[0].blocks
    parts = []
    for first in range(0, count, size):
        tokens = slice(first, first + size)
        span = Span(start + first, len(case.qkv[tokens]), blocks)
        kernels = Cpu(case.cache, *case.tables, HEADS)
        parts.append(kernels.attention(0, case.qkv[tokens].clone(), Layout([span], case.cache)))
    torch.testing.assert_close(torch.cat(parts), whole, atol=2e-6, rtol=0)


def test_scores_far_apart() -> None:
    """Where the largest score rises late, all that was summed before counts for nothing."""
    case = Case(torch.float32, [(1500, CHUNK)])
    case.cache.keys[0, case.spans[0].blocks[70]] *= 30
    scheme = Scheme(rules=[LayerRule(angles=None)])
    expected, ours = case.run(Kernels, scheme), case.run(Cpu, scheme)
    torch.testing.assert_close(ours, expected, atol=3e-5, rtol=0)  # of scores around 100


def test_what_is_no_number_stays_in_its_sequence() -> None:
    case = Case(torch.float32, [(700, 8), (700, 8)])
    case.cache.values[0, case.spans[0].blocks[3]] = torch.nan
    ours = case.run(Cpu, Scheme())
    assert ours[:8].isnan().all() and ours[8:].isfinite().all()


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 300)), min_size=1, max_size=4),
    st.sampled_from([(9, 3), (14, 2), (8, 8), (128, 1)]),
)
def test_every_token_meets_every_key_it_sees_once(
    spans: list[tuple[int, int]], heads: tuple[int, int]
) -> None:
    firsts = [sum(count for _, count in spans[:row]) for row in range(len(spans))]
    plan = Plan.of(
        [(row, firsts[row], Span(start, count, [])) for row, (start, count) in enumerate(spans)], *heads
    )
    seen: Counter[int] = Counter()
    for first, last in zip(plan.groups[:-1], plan.groups[1:], strict=True):
        pieces = plan.pieces[first:last].tolist()
        row, token, count, position = pieces[0][:4]
        assert count == 1 or count * heads[0] // heads[1] <= LANES
        assert all(piece[:4] == pieces[0][:4] for piece in pieces)
        assert position - spans[row][0] == token - firsts[row]
        edges = [piece[4] for piece in pieces] + [pieces[-1][5]]
        assert edges == sorted(set(edges)) and (edges[0], edges[-1]) == (0, position + count)
        assert [piece[5] for piece in pieces[:-1]] == edges[1:-1]
        assert len(pieces) == 1 or min(piece[5] - piece[4] for piece in pieces) >= PART
        seen.update(range(token, token + count))
    assert seen == Counter(range(sum(count for _, count in spans)))


def test_a_few_tokens_after_a_long_prefix_keep_several_threads_busy() -> None:
    plan = Plan.of([(0, 0, Span(6000, 4, []))], 9, 3)
    assert len(plan.pieces) * 3 >= 24
    assert len(Plan.of([(0, 0, Span(6000, 2000, []))], 9, 3).pieces) == len(cut(2000, LANES // 3))


def test_nothing_to_do() -> None:
    plan = Plan.of([], 9, 3)
    assert plan.pieces.shape == (0, 6) and plan.groups.tolist() == [0]
    assert chunks.cut(5, 2) == [(0, 1), (1, 2), (3, 2)] and chunks.cut(5, 9, 3) == [(0, 5)]

"""Attention over long prefixes: cut into pieces that miss nothing, equal to plain torch, and the same bits always."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.kernels.attention import ITEMS, LANES, Plan, cut
from backends.kernels.cached import FEW
from backends.kernels.cpu import Cpu
from backends.kernels.layout import KVCache, LayerRule, Layout, Scheme, Span
from backends.kernels.reference import Kernels
from backends.kernels.softmax import PART

HEADS, KV_HEADS, SIZE, BLOCK = 6, 2, 24, 16
SPANS = [(1500, 4), (3, 1), (1100, 45), (0, 127), (2, 5), (700, 20)]
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2}


class Case:
    """Sequences with a random history in a shuffled cache, and the projections of their next tokens."""

    def __init__(self, dtype: torch.dtype, spans: list[tuple[int, int]], size: int = SIZE) -> None:
        noise = torch.Generator().manual_seed(5)
        needed = [-(-(start + count) // BLOCK) for start, count in spans]
        blocks = iter(torch.randperm(sum(needed), generator=noise).tolist())
        self.spans = [
            Span(start, count, [next(blocks) for _ in range(n)])
            for (start, count), n in zip(spans, needed, strict=True)
        ]
        self.cache = KVCache(1, sum(needed), BLOCK, KV_HEADS, size, dtype=dtype)
        for side in (self.cache.keys, self.cache.values):
            side.copy_(torch.randn(side.shape, generator=noise))
        angles = torch.rand(2000, size // 2, generator=noise) * 6
        self.tables = angles.cos(), angles.sin()
        width = (HEADS + 2 * KV_HEADS) * size
        self.qkv = torch.randn(sum(count for _, count in spans), width, generator=noise).to(dtype)

    def run(self, kind: type[Kernels], scheme: Scheme) -> torch.Tensor:
        kernels = kind(self.cache, *self.tables, HEADS, scheme)
        return kernels.attention(0, self.qkv.clone(), Layout(self.spans, self.cache)).float()

    def run_cut(self, scheme: Scheme, sizes: list[int]) -> torch.Tensor:
        """The first span alone, in steps of so many tokens, again and again."""
        kernels = Cpu(self.cache, *self.tables, HEADS, scheme)
        whole, turns = self.spans[0], itertools.cycle(sizes)
        parts: list[torch.Tensor] = []
        done = 0
        while done < whole.count:
            count = min(next(turns), whole.count - done)
            span = Span(whole.start + done, count, whole.blocks)
            qkv = self.qkv[done : done + count].clone()
            parts.append(kernels.attention(0, qkv, Layout([span], self.cache)).float())
            done += count
        return torch.cat(parts)


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


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        (64, Scheme()),
        (24, Scheme(rules=[LayerRule(window=70)])),
        (20, Scheme()),  # of no whole registers
        (64, Scheme(rules=[LayerRule(window=200)])),
        (32, Scheme(soft_cap=2.0)),
    ],
)
def test_the_same_bits_however_a_prompt_is_cut(size: int, scheme: Scheme, dtype: torch.dtype) -> None:
    """One by one, as drafts are verified, in chunks, over a tile's and a part's edges."""
    start, count = PART - 90, 130
    case = Case(dtype, [(start, count)], size)
    singly = case.run_cut(scheme, [1])
    for sizes in ([2], [3], [1, 5, 17], [7], [count], [64], [100, 1]):
        assert torch.equal(case.run_cut(scheme, sizes), singly), sizes


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_same_bits_alone_and_in_company(dtype: torch.dtype) -> None:
    """Alone its keys are cut for all threads, in company they are not."""
    mine = (3 * PART + 5, 3)
    many = Case(dtype, [mine] + [(40 * row, 1 + row % 45) for row in range(ITEMS)])
    assert len(Plan.of([(0, 0, many.spans[0])], HEADS, KV_HEADS).pieces) == 4
    together = many.run(Cpu, Scheme())
    assert torch.equal(many.run_cut(Scheme(), [3]), together[:3])


@pytest.mark.parametrize("count", [1, FEW])
def test_scores_far_apart(count: int) -> None:
    """Where the largest score rises late, all that was summed before counts for nothing."""
    case = Case(torch.float32, [(1500, count)])
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
    pieces = plan.pieces.tolist()
    edges = [*plan.groups.tolist(), *range(plan.groups[-1] + 1, len(pieces) + 1)]
    for first, last in zip(edges, edges[1:], strict=False):
        row, token, count, position = pieces[first][:4]
        assert count == 1 or count * heads[0] // heads[1] <= LANES
        assert all(piece[:4] == pieces[first][:4] for piece in pieces[first:last])
        assert position - spans[row][0] == token - firsts[row]
        parts = [part for piece in pieces[first:last] for part in range(*piece[4:])]
        assert parts == list(range(-(-(position + count) // PART)))
        seen.update(range(token, token + count))
    assert seen == Counter(range(sum(count for _, count in spans)))


def test_a_few_tokens_after_a_long_prefix_keep_several_threads_busy() -> None:
    plan = Plan.of([(0, 0, Span(6000, 4, []))], 9, 3)
    assert len(plan.pieces) * 3 >= ITEMS
    assert len(Plan.of([(0, 0, Span(6000, 2000, []))], 9, 3).pieces) == len(cut(2000, LANES // 3))


def test_nothing_to_do() -> None:
    plan = Plan.of([], 9, 3)
    assert plan.pieces.shape == (0, 6) and plan.groups.tolist() == [0]
    assert cut(5, 2) == [(0, 1), (1, 2), (3, 2)]

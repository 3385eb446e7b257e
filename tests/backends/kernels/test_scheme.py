"""Windows, soft caps, heads rotated in part or not at all: fast kernels equal plain torch, which hides by a mask."""

from itertools import count

import pytest
import torch

from backends.kernels.cpu import Cpu
from backends.kernels.layout import KVCache, LayerRule, Layout, Scheme, Span
from backends.kernels.reference import Kernels

HEADS, KV_HEADS, SIZE = 6, 2, 32
SPANS = [(0, 1), (40, 1), (0, 17), (21, 3), (100, 30), (15, 2), (0, 40)]
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2}


class Case:
    """One batch over a cache with a random history."""

    def __init__(self, block_size: int, dtype: torch.dtype, part: int = SIZE) -> None:
        noise = torch.Generator().manual_seed(block_size)
        blocks = count()
        spans = [
            Span(start, length, [next(blocks) for _ in range(-(-(start + length) // block_size))], shift)
            for shift, (start, length) in enumerate(SPANS)
        ]
        self.cache = KVCache(1, next(blocks), block_size, KV_HEADS, SIZE, dtype=dtype)
        self.cache.keys.copy_(torch.randn(self.cache.keys.shape, generator=noise))
        self.cache.values.copy_(torch.randn(self.cache.values.shape, generator=noise))
        self.layout = Layout(spans, self.cache)
        angles = torch.rand(300, part // 2, generator=noise) * 6
        self.tables = angles.cos(), angles.sin()
        tokens = sum(length for _, length in SPANS)
        self.qkv = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * SIZE, generator=noise).to(dtype)

    def run(self, kind: type[Kernels], scheme: Scheme) -> torch.Tensor:
        kernels = kind(self.cache, *self.tables, HEADS, scheme)
        return kernels.attention(0, self.qkv.clone(), self.layout).float()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 2, 16, 17, 31, 41, 500])
def test_windows_and_caps(window: int | None, cap: float | None, block_size: int, dtype: torch.dtype) -> None:
    case = Case(block_size, dtype)
    scheme = Scheme(scale=0.3, soft_cap=cap, rules=[LayerRule(angles=100, window=window)])
    expected, ours = case.run(Kernels, scheme), case.run(Cpu, scheme)
    torch.testing.assert_close(ours, expected, atol=TOLERANCE[dtype], rtol=0)


def test_a_token_sees_itself_and_those_right_before_it() -> None:
    """By hand, against a window of two that is off by one in any direction."""
    cache = KVCache(1, 1, 4, 1, 2, dtype=torch.float32)
    kernels = Cpu(cache, torch.ones(4, 1), torch.zeros(4, 1), 1, Scheme(rules=[LayerRule(window=2)]))
    values = torch.tensor([[1.0, 0], [2, 0], [4, 0], [8, 0]])
    qkv = torch.cat([torch.zeros(4, 4), values], dim=1)  # all keys alike
    out = kernels.attention(0, qkv, Layout([Span(0, 4, [0])], cache))
    assert out[:, 0].tolist() == [1, 1.5, 3, 6]


@pytest.mark.parametrize("kind", [Kernels, Cpu])
@pytest.mark.parametrize(("angles", "rotated"), [(None, 0), (0, 8)])
def test_what_is_not_rotated_stays(kind: type[Kernels], angles: int | None, rotated: int) -> None:
    """All of a head without angles, its last dimensions where the tables are narrower."""
    case = Case(16, torch.float32, part=8)
    case.run(kind, Scheme(rules=[LayerRule(angles)]))
    blocks, offsets = case.layout.places
    stored = case.cache.keys[0, blocks, offsets]
    own = case.qkv.view(-1, HEADS + 2 * KV_HEADS, SIZE)[:, HEADS : HEADS + KV_HEADS]
    assert torch.equal(stored[..., rotated:], own[..., rotated:])
    assert not torch.isclose(stored[..., :rotated], own[..., :rotated]).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gelu_and_norms(dtype: torch.dtype) -> None:
    case = Case(16, dtype)
    plain, ours = (kind(case.cache, *case.tables, HEADS) for kind in (Kernels, Cpu))
    loose = dtype == torch.bfloat16
    gate_up = (torch.randn(5, 2 * 77) * 8).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=1)
    exact = (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(dtype)
    torch.testing.assert_close(ours.gelu_mul(gate_up), exact, atol=1e-6, rtol=1.6e-2 if loose else 1e-5)
    # torch's own cancels for gates far below 0: 1 + tanh is off by a rounding of 1 there, times gate and up
    torch.testing.assert_close(plain.gelu_mul(gate_up), exact, atol=5e-5, rtol=1.6e-2 if loose else 1e-5)
    weights = torch.rand(SIZE), torch.rand(SIZE)
    one, other = case.qkv.clone(), case.qkv.clone()
    plain.norm_heads(one, *weights, eps=1e-6)
    ours.norm_heads(other, *weights, eps=1e-6)
    torch.testing.assert_close(other, one)
    heads = one.float().view(-1, HEADS + 2 * KV_HEADS, SIZE)
    key = case.qkv.float().view(heads.shape)[3, HEADS]
    expected = key / key.square().mean().sqrt() * weights[1]
    torch.testing.assert_close(heads[3, HEADS], expected, atol=2e-2 if loose else 1e-5, rtol=0)
    assert torch.equal(one[:, -KV_HEADS * SIZE :], case.qkv[:, -KV_HEADS * SIZE :])  # values stay

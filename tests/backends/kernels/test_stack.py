"""All blocks in one call say what they say one by one, to the last bit, and what one call cannot do is left to many."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from backends.kernels.cpu import Cpu
from backends.kernels.layout import KVCache, LayerRule, Layout, Scheme, Span
from backends.kernels.stack import Stack
from backends.layers.int4 import Int4Linear
from backends.layers.int8 import Int8Linear
from backends.layers.linear import Linear, linear
from backends.layers.rotation import Rope
from backends.models.config import DecoderConfig
from backends.models.decoder import Block, through
from backends.quantization.int4 import rounded

WIDTH, MLP, HEADS, KV_HEADS, SIZE = 96, 160, 6, 2, 16
BLOCKS, BLOCK = 3, 16
RULES = [LayerRule(), LayerRule(window=5), LayerRule(angles=None)]

Make = Callable[[int, int], Linear]


def eight(channels: int, columns: int) -> Linear:
    return Int8Linear(torch.randn(channels, columns) / 10, torch.randn(channels))


def four(channels: int, columns: int) -> Linear:
    return Int4Linear(rounded(torch.randn(channels, columns) / 10), torch.randn(channels))


def whole(channels: int, columns: int) -> Linear:
    return linear(torch.randn(channels, columns) / 10)


def block(first: Make = eight, second: Make = eight, mlp: int = MLP) -> Block:
    return Block(
        attention_norm=torch.randn(WIDTH),
        qkv=first((HEADS + 2 * KV_HEADS) * SIZE, WIDTH),
        output=first(WIDTH, HEADS * SIZE),
        mlp_norm=torch.randn(WIDTH),
        gate_up=first(2 * mlp, WIDTH),
        down=second(WIDTH, mlp),
        head_norms=None,
        post_norms=None,
    )


def config(activation: str) -> DecoderConfig:
    return DecoderConfig(
        layers=BLOCKS, width=WIDTH, mlp_width=MLP, heads=HEADS, kv_heads=KV_HEADS, head_dim=SIZE, vocab_size=8,
        max_positions=64, norm_eps=1e-5, rope=Rope(1e4), tied=True, activation=activation,
    )  # fmt: skip


class Case:
    """A batch in a cache of its own with some history."""

    def __init__(self, spans: list[tuple[int, int]], dtype: torch.dtype, kept: torch.dtype) -> None:
        noise = torch.Generator().manual_seed(1)
        self.cache = KVCache(BLOCKS, 4 * len(spans), BLOCK, KV_HEADS, SIZE, dtype=kept)
        for side in (self.cache.keys, self.cache.values):
            side.copy_(torch.randn(side.shape, generator=noise))
        angles = torch.rand(64, SIZE // 2, generator=noise)
        self.kernels = Cpu(self.cache, angles.cos(), angles.sin(), HEADS, Scheme(rules=RULES))
        tables = [list(range(4 * place, 4 * place + 4)) for place in range(len(spans))]
        self.layout = Layout(
            [Span(*span, table) for span, table in zip(spans, tables, strict=True)], self.cache
        )
        tokens = sum(count for _, count in spans)
        self.update = torch.randn(tokens, WIDTH, generator=noise).to(dtype)
        self.residual = torch.randn(tokens, WIDTH, generator=noise)

    def together(self, blocks: list[Block], activation: str = "silu") -> bool:
        return self.kernels.blocks(blocks, self.residual, self.update, self.layout, 1e-5, activation)

    def apart(self, blocks: list[Block], activation: str) -> None:
        for layer, each in enumerate(blocks):
            self.update = through(
                layer, each, config(activation), self.residual, self.update, self.layout, self.kernels
            )

    @property
    def results(self) -> list[torch.Tensor]:
        return [self.residual, self.update, self.cache.keys, self.cache.values]


@pytest.mark.parametrize(
    "spans",
    [[(20, 1)], [(0, 1), (40, 1), (7, 4)], [(3, 50)], [(place, 50) for place in range(7)]],
    ids=["one", "some", "many", "panels"],
)
@pytest.mark.parametrize(
    ("first", "second", "dtype", "kept", "activation"),
    [
        (eight, eight, torch.float32, torch.bfloat16, "silu"),
        (four, eight, torch.bfloat16, torch.bfloat16, "gelu"),
    ],
    ids=["eight bits", "four bits and eight"],
)
def test_together_is_as_apart(
    first: Make,
    second: Make,
    dtype: torch.dtype,
    kept: torch.dtype,
    activation: str,
    spans: list[tuple[int, int]],
) -> None:
    blocks = [block(first, second) for _ in range(BLOCKS)]
    together, apart = Case(spans, dtype, kept), Case(spans, dtype, kept)
    assert together.together(blocks, activation)
    apart.apart(blocks, activation)
    for ours, theirs in zip(together.results, apart.results, strict=True):
        assert torch.equal(ours, theirs)


def norms(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(count), torch.ones(count)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: block(mlp=MLP + 32), id="another width"),
        pytest.param(lambda: block(second=four), id="other weights"),
        pytest.param(lambda: block(second=whole), id="whole weights"),
        pytest.param(lambda: replace(block(), head_norms=norms(SIZE)), id="norms of heads"),
        pytest.param(lambda: replace(block(), post_norms=norms(WIDTH)), id="norms behind"),
    ],
)
def test_blocks_that_are_not_alike_run_one_by_one(other: Callable[[], Any]) -> None:
    assert Stack.of([block(), block()]) is not None
    assert Stack.of([block(), other()]) is None


def test_another_models_blocks_are_not_taken_for_the_first_ones() -> None:
    first, second = ([block() for _ in range(BLOCKS)] for _ in range(2))
    case, fresh = (Case([(20, 1)], torch.float32, torch.bfloat16) for _ in range(2))
    case.together(first)
    case.update, case.residual = fresh.update.clone(), fresh.residual.clone()
    case.together(second)
    fresh.together(second)
    assert torch.equal(case.update, fresh.update)

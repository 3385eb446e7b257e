"""Where the tokens of a batch lie: in their sequences, and in the blocks of the KV cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backends.kernels.kv_formats import RECORDS, dequantize, is_scaled, quantize
from backends.kernels.kv_int4 import decode, encode, record_bytes
from backends.kernels.transfer import upload

Ints = NDArray[np.int32]

# On GPUs a span of this many tokens is long: it has work enough for them without its context being shared out.
LONG = 16

ENDLESS = 2**62  # a window that hides nothing


@dataclass(frozen=True, slots=True)
class Span:
    """`count` ≥ 1 tokens of one sequence at the positions from `start` on, its KV in `blocks` (see batch.Row).

    `shift`: by how many rows of the tables of cos and sin the tokens are away from those of their positions.
    """

    start: int
    count: int
    blocks: Sequence[int]
    shift: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class LayerRule:
    """How one layer attends.

    `angles`: the row of cos and sin that is for position 0; None: nothing is rotated.
    `window`: a token sees so many tokens at most, itself and those right before it; None: all before it.
    """

    angles: int | None = 0
    window: int | None = None

    def first(self, start: int) -> int:
        """The first position that a token at `start` sees."""
        return 0 if self.window is None else max(0, start + 1 - self.window)


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a model attends; by default as most do.

    Scores are q · k · `scale`, or `soft_cap` · tanh(q · k · `scale` / `soft_cap`). `rules`: one for each layer.
    """

    scale: float | None = None  # None: head size ** -0.5
    soft_cap: float | None = None
    rules: Sequence[LayerRule] = ()  # empty: all layers rotate and see everything


PLAIN = Scheme()


class KVCache:
    """Keys and values of all layers, each [layers, blocks, block_size, kv_heads, head_dim].

    In eight bits they are codes with scales beside them, see `kv_formats`: `key_scales` and `value_scales`, float32
    [layers, blocks, block_size, kv_heads]; None for types that need none. In four bits (uint8) they are the records of
    `kv_int4`, whose bytes stand in the place of head_dim. Unwritten places hold anything, NaN included, and are never
    read.
    """

    def __init__(
        self,
        layers: int,
        blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (layers, blocks, block_size, kv_heads)
        width = record_bytes(head_dim) if dtype == RECORDS else head_dim
        self.keys = torch.empty(*shape, width, dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)
        scaled = is_scaled(dtype)
        self.key_scales = torch.empty(shape, device=device) if scaled else None
        self.value_scales = torch.empty(shape, device=device) if scaled else None
        self.blocks, self.block_size, self.head_dim = blocks, block_size, head_dim

    @property
    def bytes(self) -> int:
        """What it takes, scales included."""
        sides = (self.keys, self.values, self.key_scales, self.value_scales)
        return sum(side.nbytes for side in sides if side is not None)

    def write(
        self,
        layer: int,
        places: tuple[torch.Tensor, torch.Tensor],
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Store `keys` and `values` [T, kv_heads, head_dim] at the blocks and offsets `places`, [T] each."""
        at = (layer, *places)
        if self.keys.dtype == RECORDS:
            self.keys[at], self.values[at] = encode(keys), encode(values)
            return
        if self.key_scales is None or self.value_scales is None:
            self.keys[at], self.values[at] = (each.to(self.keys.dtype) for each in (keys, values))
            return
        for side, scales, x in (
            (self.keys, self.key_scales, keys),
            (self.values, self.value_scales, values),
        ):
            codes, scale = quantize(x, side.dtype)
            # as bytes: torch cannot yet put float8 at places
            side.view(torch.uint8)[at], scales[at] = codes.view(torch.uint8), scale

    def gather(
        self, layer: int, table: torch.Tensor, stop: int, start: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of one sequence's keys and values at the positions `start` to `stop` - 1, each
        [stop - start, kv_heads, head_dim], in float32 where they are kept in eight bits or four."""
        first = start // self.block_size
        blocks, own = table[first : -(-stop // self.block_size)].long(), first * self.block_size
        keys, values = (
            self._copy(side[layer], None if scales is None else scales[layer], blocks)[
                start - own : stop - own
            ]
            for side, scales in ((self.keys, self.key_scales), (self.values, self.value_scales))
        )
        return keys, values

    def _copy(self, side: torch.Tensor, scales: torch.Tensor | None, blocks: torch.Tensor) -> torch.Tensor:
        """The blocks one after another, [tokens, kv_heads, head_dim]."""
        if scales is None:
            copied = side.index_select(0, blocks).flatten(0, 1)
            return decode(copied, self.head_dim) if side.dtype == RECORDS else copied
        codes = side.view(torch.uint8).index_select(0, blocks).view(side.dtype)
        return dequantize(codes, scales.index_select(0, blocks)).flatten(0, 1)


class Layout:
    """One batch as arrays: the spans' tokens one after another.

    positions  [tokens]            of each token in its sequence
    angles     [tokens]            where each token's cos and sin are, counted from a layer's position 0
    rows       [tokens]            the span of each token
    tables     [spans, most]       the blocks of each span, padded with 0
    """

    def __init__(self, spans: Sequence[Span], cache: KVCache) -> None:
        """Raises ValueError for a span without tokens, beyond its blocks, or with blocks that `cache` lacks:
        compiled loops would read and write whatever memory lies there."""
        for span in spans:
            if span.count < 1 or span.start < 0 or span.stop > len(span.blocks) * cache.block_size:
                raise ValueError(f"{span}: must hold tokens, all inside blocks of {cache.block_size}")
            if min(span.blocks) < 0 or max(span.blocks) >= cache.blocks:
                raise ValueError(f"{span}: there are only the blocks 0 to {cache.blocks - 1}")
        self.spans = spans
        self.block_size = cache.block_size
        self.device = cache.keys.device
        counts = self.counts = np.array([span.count for span in spans])
        self.firsts = np.cumsum(counts) - counts  # [spans]: where each span's tokens begin
        starts = np.array([span.start for span in spans])
        self.positions: Ints = (np.arange(counts.sum()) + np.repeat(starts - self.firsts, counts)).astype(
            np.int32
        )
        shifts = np.array([span.shift for span in spans], np.int32)
        self.angles: Ints = self.positions + np.repeat(shifts, counts)
        self.rows: Ints = np.repeat(np.arange(len(spans), dtype=np.int32), counts)
        self.device_batch: Any = None  # what kernels for GPUs have made of it
        self.plan: Any = None  # how kernels for CPUs have cut it
        self.tables: Ints = np.zeros((len(spans), max(len(span.blocks) for span in spans)), np.int32)
        for table, span in zip(self.tables, spans, strict=True):
            table[: len(span.blocks)] = span.blocks

    @cached_property
    def places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Block and offset of each token's own key and value, int64 [tokens] each."""
        block = self.tables[self.rows, self.positions // self.block_size]
        return self.tensor(block.astype(np.int64)), self.tensor(self.positions % self.block_size).long()

    @cached_property
    def device_angles(self) -> torch.Tensor:
        return self.tensor(self.angles).long()

    @cached_property
    def device_tables(self) -> torch.Tensor:
        return self.tensor(self.tables)

    def tokens(self, span: int) -> slice:
        """Where the tokens of one span lie in the batch."""
        first = int(self.firsts[span])
        return slice(first, first + self.spans[span].count)

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return upload(array, self.device)

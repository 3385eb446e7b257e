"""Attention over the paged cache, in Triton, for chunks, whole prompts, drafts and single tokens alike.

One program for each tile of queries and key/value head: some tokens of one span, with all the query heads of the group
as rows, so that keys and values are read once for them all. It walks what the tile sees with an online softmax
(arXiv:1805.02867; arXiv:2205.14135, section 3.1), so that memory grows with the tokens only. Tiles of short spans are
shared by several programs, each with a piece of the context, and a second kernel merges what they found by its
log-sum-exp (as Flash-Decoding does, pytorch.org/blog/flash-decoding). Where a piece ends depends on the tile alone, so
that no answer depends on who else runs.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from backends.kernels.device_batch import DeviceBatch, Tiles
from backends.kernels.layout import KVCache
from backends.kernels.triton_codes import from_float8
from backends.kernels.triton_types import OPTIONS, codes

LEAST = 16  # rows and columns that tl.dot wants
WIDE = 128  # rows of a tile of a long span, for heads that leave room for them in registers
WIDE_FLOAT32 = 32  # likewise: float32 has no tensor cores
KEYS_OF_BYTES = 32  # positions per step, at most, of such a tile: taking float8 apart wants registers, too
PIECES = 16  # programs that share a tile of a short span, at most
LEAST_PIECE = 8  # tiles of keys below which a piece is not worth a program of its own


@dataclass(frozen=True, slots=True)
class Shape:
    """What the kernel is compiled for. `rows` of a tile are tokens × query heads of a group."""

    rows: int
    columns: int
    keys: int  # positions per step of the loop
    pieces: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": self.warps, "num_stages": self.stages, **OPTIONS}


def shape_of(
    group: int, size: int, bytes_each: int, *, short: bool, scaled: bool = False, as_bytes: bool = False
) -> Shape:
    """For heads of `size` numbers of `bytes_each`, `group` of them with the same keys. `short`: of short spans.

    `scaled`: over a cache of eight bits; `as_bytes`: of float8 that the device does not know, see `widen`.
    """
    columns = max(LEAST, triton.next_power_of_2(size))
    least = max(LEAST, triton.next_power_of_2(group))
    width = columns * bytes_each  # bytes of a row of keys
    keys = 64 if width <= 256 else 32 if width <= 512 else 16
    if short:
        return Shape(least, columns, keys, PIECES, warps=4, stages=2)
    wide = WIDE_FLOAT32 if bytes_each == 4 else WIDE if width <= 256 else WIDE // 2
    rows = max(least, wide)
    keys = min(keys, KEYS_OF_BYTES) if as_bytes else keys
    crowded = scaled and rows * columns >= WIDE * WIDE  # widened keys and values want registers, too
    return Shape(rows, columns, keys, 1, warps=8 if rows >= WIDE or crowded else 4, stages=2)


def paged_attention(
    q: torch.Tensor,
    cache: KVCache,
    layer: int,
    batch: DeviceBatch,
    scale: float,
    soft_cap: float | None,
    window: int | None,
    out: torch.Tensor,
) -> None:
    """out[t] = attention of query q[t], both [T, H, D], over the cache as far as token t sees.

    `window` as in `layout.LayerRule`, `soft_cap` as in `layout.Scheme`. Tokens at position -1 get zeros.
    """
    group, size = q.shape[1] // cache.keys.shape[3], q.shape[2]
    scaled, as_bytes = cache.key_scales is not None, codes(cache.keys).dtype == torch.uint8
    for tiles, short in ((batch.short, True), (batch.long, False)):
        if tiles is None:
            continue
        shape = shape_of(group, size, q.element_size(), short=short, scaled=scaled, as_bytes=as_bytes)
        means, sums = out, out  # stand-ins where nothing is merged
        if shape.pieces > 1:
            parts = (tiles.tokens, q.shape[1], shape.pieces)
            means = torch.empty(*parts, size, dtype=torch.float32, device=q.device)
            sums = torch.empty(parts, dtype=torch.float32, device=q.device)
        _attend(q, cache, layer, batch, tiles, shape, scale, soft_cap, window, out, means, sums)
        if shape.pieces > 1:
            merge[(tiles.tokens, q.shape[1])](
                means, sums, out, tiles.order, *out.stride()[:2],
                SIZE=size, COLUMNS=shape.columns, PIECES=shape.pieces, **OPTIONS,
            )  # fmt: skip


def _attend(
    q: torch.Tensor,
    cache: KVCache,
    layer: int,
    batch: DeviceBatch,
    tiles: Tiles,
    shape: Shape,
    scale: float,
    soft_cap: float | None,
    window: int | None,
    out: torch.Tensor,
    means: torch.Tensor,
    sums: torch.Tensor,
) -> None:
    """Scores are in units of ln 2, since powers of two are what the device has."""
    kv_heads = cache.keys.shape[3]
    scales = cache.key_scales, cache.value_scales
    attend[(len(tiles.table), kv_heads, shape.pieces)](
        q,
        codes(cache.keys[layer]),
        codes(cache.values[layer]),
        *(None if each is None else each[layer] for each in scales),
        out,
        means,
        sums,
        tiles.table,
        batch.positions,
        batch.tables,
        batch.tables.stride(0),
        *q.stride()[:2],
        *out.stride()[:2],
        *cache.keys.stride()[1:4],
        scale / soft_cap if soft_cap else scale / math.log(2),
        (soft_cap or 0.0) / math.log(2),
        **constants(q.shape[1] // kv_heads, q.shape[2], cache.block_size, soft_cap, window, shape),
        SCALED=scales[0] is not None,
        **shape.options,
    )


def constants(
    group: int, size: int, block: int, soft_cap: float | None, window: int | None, shape: Shape
) -> dict[str, Any]:
    """What else the kernel is compiled for."""
    return {
        "GROUP": group,
        "SIZE": size,
        "BLOCK": block,
        "CAPPED": soft_cap is not None,
        "WINDOW": window or 0,
        "ROWS": shape.rows,
        "COLUMNS": shape.columns,
        "KEYS": shape.keys,
        "PIECES": shape.pieces,
        "LEAST_PIECE": LEAST_PIECE,
    }


@triton.jit(do_not_specialize=["table_stride"])  # type: ignore[untyped-decorator]
def attend(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    out: tl.tensor,
    means: tl.tensor,
    sums: tl.tensor,
    tiles: tl.tensor,
    positions: tl.tensor,
    tables: tl.tensor,
    table_stride: tl.tensor,
    q_token: tl.tensor,
    q_head: tl.tensor,
    out_token: tl.tensor,
    out_head: tl.tensor,
    block_stride: tl.tensor,
    offset_stride: tl.tensor,
    head_stride: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    CAPPED: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    KEYS: tl.constexpr,
    PIECES: tl.constexpr,
    LEAST_PIECE: tl.constexpr,
    SCALED: tl.constexpr,
) -> None:
    """The dots are in the type of q, everything else in float32. Unwritten places are not read.

    A tile of `tiles` [N, 4] is: the row of its span in `tables`, its first token, its tokens, and where these stand
    among the tokens that are merged.
    """
    tile, head, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    entry = tiles + tile * 4
    table = tables + tl.load(entry).to(tl.int64) * table_stride
    first, count, slot = tl.load(entry + 1).to(tl.int64), tl.load(entry + 2), tl.load(entry + 3).to(tl.int64)
    begin = tl.load(positions + first)
    end = begin + count

    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    nth, heads = rows // GROUP, head * GROUP + rows % GROUP
    is_row = nth < count
    is_query = is_row[:, None] & (columns < SIZE)[None, :]
    from_q = (first + nth)[:, None] * q_token + heads[:, None] * q_head + columns[None, :]
    query = tl.load(q + from_q, mask=is_query, other=0.0)
    position = begin + nth

    low = tl.maximum(begin + 1 - WINDOW, 0) // KEYS if WINDOW else 0
    high = tl.cdiv(end, KEYS)  # tiles of keys, from low on
    if PIECES > 1:
        each = tl.full((), LEAST_PIECE, tl.int32)
        while low // each * each + each * PIECES < high:
            each *= 2
        base = low // each * each + piece * each
        low, high = tl.maximum(low, base), tl.minimum(high, base + each)

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mean = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(low, high):
        places = step * KEYS + tl.arange(0, KEYS)
        inside = places < end
        block = tl.load(table + places // BLOCK, mask=inside, other=0).to(tl.int64)
        at = block * block_stride + places % BLOCK * offset_stride + head * head_stride
        is_kept = inside[:, None] & (columns < SIZE)[None, :]
        key = widen(tl.load(keys + at[:, None] + columns[None, :], mask=is_kept, other=0.0), query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if SCALED:  # [blocks, BLOCK, heads], as the codes but for their columns
            at_scale = block * (block_stride // SIZE) + places % BLOCK * (offset_stride // SIZE) + head
            scores *= tl.load(key_scales + at_scale, mask=inside, other=0.0)[None, :]
        if CAPPED:
            scores = soft_cap * (1 - 2 / (tl.exp(2 * scores) + 1))  # tanh
        seen = inside[None, :] & (places[None, :] <= position[:, None])
        if WINDOW:
            seen &= places[None, :] > position[:, None] - WINDOW
        scores = tl.where(seen, scores, float("-inf"))
        raised = tl.maximum(top, tl.max(scores, 1))
        origin = tl.where(raised == float("-inf"), 0.0, raised)  # of rows that have seen nothing yet
        shrink = tl.exp2(top - origin)
        weights = tl.exp2(scores - origin[:, None])
        total = total * shrink + tl.sum(weights, 1)
        value = widen(tl.load(values + at[:, None] + columns[None, :], mask=is_kept, other=0.0), query.dtype)
        if SCALED:
            of_value = tl.load(value_scales + at_scale, mask=inside, other=0.0)
            # Taken out, as float16 has no room for small ones.
            largest = tl.maximum(tl.max(of_value, 0), 1e-30)
            weights *= (of_value / largest)[None, :]
            more = tl.dot(weights.to(query.dtype), value, input_precision="ieee") * largest
        else:
            more = tl.dot(weights.to(query.dtype), value, input_precision="ieee")
        mean = mean * shrink[:, None] + more
        top = raised

    seen_any = total > 0
    total = tl.where(seen_any, total, 1.0)
    result = mean / total[:, None]
    if PIECES > 1:
        to = ((slot + nth) * tl.num_programs(1) * GROUP + heads) * PIECES + piece
        tl.store(sums + to, top + tl.log2(total), mask=is_row)
        to_mean = to[:, None] * SIZE + columns[None, :]
        tl.store(means + to_mean, result, mask=is_query & seen_any[:, None])
    else:
        to_out = (first + nth)[:, None] * out_token + heads[:, None] * out_head + columns[None, :]
        tl.store(out + to_out, result.to(query.dtype), mask=is_query)


@triton.jit  # type: ignore[untyped-decorator]
def widen(code: tl.tensor, like: tl.constexpr) -> tl.tensor:
    """In the type `like`, all of them exactly. Bytes are float8 e4m3, for devices that do not know these."""
    if code.dtype == tl.uint8:
        return from_float8(code).to(like)
    return code.to(like)


@triton.jit  # type: ignore[untyped-decorator]
def merge(
    means: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    order: tl.tensor,
    out_token: tl.tensor,
    out_head: tl.tensor,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    PIECES: tl.constexpr,
) -> None:
    """Attention over the union of pieces, of one query: their means, weighted by the exponents of their sums."""
    slot, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pieces, columns = tl.arange(0, PIECES), tl.arange(0, COLUMNS)
    at = (slot * tl.num_programs(1) + head) * PIECES + pieces
    of_piece = tl.load(sums + at)
    some = of_piece > float("-inf")
    top = tl.max(of_piece, 0)
    weights = tl.exp2(of_piece - tl.where(top == float("-inf"), 0.0, top))
    is_mean = some[:, None] & (columns < SIZE)[None, :]
    mean = tl.load(means + at[:, None] * SIZE + columns[None, :], mask=is_mean, other=0.0)
    total = tl.sum(weights, 0)
    result = tl.sum(mean * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    to = tl.load(order + slot).to(tl.int64) * out_token + head * out_head
    tl.store(out + to + columns, result.to(out.dtype.element_ty), mask=columns < SIZE)

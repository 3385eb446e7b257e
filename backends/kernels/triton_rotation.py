"""Rotation of queries and keys by their positions, and the way of keys and values into the cache, in Triton.

One program for some of a token's heads. Keys and values are rounded to eight bits on their way where the cache has
those, bit by bit as `kv_formats.quantize` does it.
"""

import torch
import triton
import triton.language as tl

from backends.kernels.device_batch import DeviceBatch
from backends.kernels.kv_formats import LARGEST, LEAST
from backends.kernels.layout import KVCache
from backends.kernels.triton_codes import to_float8, to_int8
from backends.kernels.triton_types import OPTIONS

HEADS = 8  # of one token that a program takes


def rotate_store(
    qkv: torch.Tensor,
    cache: KVCache,
    layer: int,
    batch: DeviceBatch,
    cos: torch.Tensor,
    sin: torch.Tensor,
    angles: int | None,
) -> None:
    """Rotate the queries in `qkv` [T, (H + 2 K) · D] in place and store keys and values, as `reference.Kernels` does.

    `angles` as in `layout.LayerRule`. Nothing is done for tokens at position -1.
    """
    kv_heads, size = cache.keys.shape[3:]
    heads = qkv.shape[1] // size
    half = size // 2 if angles is None else cos.shape[1]
    scales = (None if each is None else each[layer] for each in (cache.key_scales, cache.value_scales))
    dtype = cache.keys.dtype
    sides = (side[layer] for side in (cache.keys, cache.values))
    rotate[(len(qkv), triton.cdiv(heads, HEADS))](
        qkv,
        *(side.view(torch.uint8) if dtype == torch.float8_e4m3fn else side for side in sides),
        *scales,
        cos,
        sin,
        batch.positions,
        batch.angles,
        batch.rows,
        batch.tables,
        batch.tables.stride(0),
        qkv.stride(0),
        angles or 0,
        *cache.keys.stride()[1:4],
        QUERIES=heads - 2 * kv_heads,
        KV_HEADS=kv_heads,
        SIZE=size,
        HALF=half,
        BLOCK=cache.block_size,
        ROTATED=angles is not None,
        LARGEST=LARGEST.get(dtype, 0.0),
        LEAST=LEAST,
        HEADS=HEADS,
        HALF_COLUMNS=triton.next_power_of_2(half),
        REST_COLUMNS=triton.next_power_of_2(size - 2 * half) if size > 2 * half else 0,
        **OPTIONS,
    )


@triton.jit(do_not_specialize=["table_stride", "first_angle"])  # type: ignore[untyped-decorator]
def rotate(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    positions: tl.tensor,
    angles: tl.tensor,
    rows: tl.tensor,
    tables: tl.tensor,
    table_stride: tl.tensor,
    row_stride: tl.tensor,
    first_angle: tl.tensor,
    block_stride: tl.tensor,
    offset_stride: tl.tensor,
    head_stride: tl.tensor,
    QUERIES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    ROTATED: tl.constexpr,
    LARGEST: tl.constexpr,
    LEAST: tl.constexpr,
    HEADS: tl.constexpr,
    HALF_COLUMNS: tl.constexpr,
    REST_COLUMNS: tl.constexpr,
) -> None:
    """The first 2 · HALF dimensions turn as two halves, the rest stays. A thread has both numbers of a pair: what one
    overwrites no other has yet to read."""
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token)
    if position < 0:
        return
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    half, rest = tl.arange(0, HALF_COLUMNS), 2 * HALF + tl.arange(0, REST_COLUMNS if REST_COLUMNS else 1)
    is_head, is_half = heads < QUERIES + 2 * KV_HEADS, half < HALF
    is_value = heads >= QUERIES + KV_HEADS
    own = qkv + token * row_stride + heads[:, None] * SIZE
    is_pair = is_head[:, None] & is_half[None, :]
    first = tl.load(own + half[None, :], mask=is_pair, other=0.0)
    second = tl.load(own + HALF + half[None, :], mask=is_pair, other=0.0)
    if ROTATED:
        angle = (tl.load(angles + token) + first_angle).to(tl.int64) * HALF
        by_cos = tl.load(cos + angle + half, mask=is_half, other=0.0)[None, :]
        by_sin = tl.load(sin + angle + half, mask=is_half, other=0.0)[None, :]
        one, other = first.to(tl.float32), second.to(tl.float32)
        stays = is_value[:, None]
        first = tl.where(stays, one, one * by_cos - other * by_sin).to(first.dtype)
        second = tl.where(stays, other, other * by_cos + one * by_sin).to(second.dtype)
        is_query = is_pair & (heads < QUERIES)[:, None]
        tl.store(own + half[None, :], first, mask=is_query)
        tl.store(own + HALF + half[None, :], second, mask=is_query)

    nth = tl.where(is_value, heads - QUERIES - KV_HEADS, heads - QUERIES)
    block = tl.load(tables + tl.load(rows + token).to(tl.int64) * table_stride + position // BLOCK).to(
        tl.int64
    )
    at = block * block_stride + position % BLOCK * offset_stride + nth * head_stride
    is_key = (heads >= QUERIES) & (heads < QUERIES + KV_HEADS)
    is_value &= is_head
    is_rest = is_head[:, None] & (rest < SIZE)[None, :]
    if REST_COLUMNS:
        last = tl.load(own + rest[None, :], mask=is_rest, other=0.0)
    if LARGEST > 0:
        first, second = first.to(tl.float32), second.to(tl.float32)
        loudest = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        if REST_COLUMNS:
            last = last.to(tl.float32)
            loudest = tl.maximum(loudest, tl.max(tl.abs(last), 1))
        scale = tl.div_rn(tl.maximum(loudest, LEAST), tl.full([HEADS], LARGEST, tl.float32))
        at_scale = block * (block_stride // SIZE) + position % BLOCK * (offset_stride // SIZE) + nth
        tl.store(key_scales + at_scale, scale, mask=is_key)
        tl.store(value_scales + at_scale, scale, mask=is_value)
        first, second = (
            encode(first, scale, keys.dtype.element_ty),
            encode(second, scale, keys.dtype.element_ty),
        )
        if REST_COLUMNS:
            last = encode(last, scale, keys.dtype.element_ty)
    to = at[:, None] + half[None, :]
    tl.store(keys + to, first, mask=is_pair & is_key[:, None])
    tl.store(keys + to + HALF, second, mask=is_pair & is_key[:, None])
    tl.store(values + to, first, mask=is_pair & is_value[:, None])
    tl.store(values + to + HALF, second, mask=is_pair & is_value[:, None])
    if REST_COLUMNS:
        to_rest = at[:, None] + rest[None, :]
        tl.store(keys + to_rest, last, mask=is_rest & is_key[:, None])
        tl.store(values + to_rest, last, mask=is_rest & is_value[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def encode(x: tl.tensor, scale: tl.tensor, like: tl.constexpr) -> tl.tensor:
    """x / scale, as int8, or as the bytes of float8 e4m3."""
    x = tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))
    return to_int8(x) if like == tl.int8 else to_float8(x)

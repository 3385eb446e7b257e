"""Attention of single tokens over the paged cache, in Triton: the fast path of `backends.kernels.cuda`.

One program for each token and key/value head. It walks the token's blocks a tile at a time with an online softmax
(arXiv:1805.02867), for all the query heads of the group at once, so that keys and values are read once.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from backends.kernels.layout import KVCache, Layout

TILE = 32  # positions per step of the loop
LEAST = 16  # rows that tl.dot wants
OPTIONS = {"enable_fp_fusion": True}  # of the compiler; left open, Triton warns that its default will change


def paged_decode(
    q: torch.Tensor,
    cache: KVCache,
    layer: int,
    layout: Layout,
    scale: float,
    soft_cap: float | None,
    window: int | None,
    out: torch.Tensor,
) -> None:
    """out[t] = attention of query q[t], both [T, H, D], for each t of the layout's short tokens.

    `window` as in `layout.LayerRule`, `soft_cap` as in `layout.Scheme`.
    """
    keys, values = cache.keys[layer], cache.values[layer]
    kv_heads, size = keys.shape[2:]
    group = q.shape[1] // kv_heads
    tokens = layout.tensor(layout.short_tokens)
    decode[(len(tokens), kv_heads)](
        q,
        keys,
        values,
        out,
        tokens,
        layout.tensor(layout.positions),
        layout.tensor(layout.rows),
        layout.device_tables,
        layout.tables.shape[1],
        *q.stride()[:2],
        *out.stride()[:2],
        *keys.stride()[:3],
        scale,
        soft_cap or 0.0,
        **constants(group, size, cache.block_size, soft_cap is not None, window),
        **OPTIONS,
    )


def constants(group: int, size: int, block: int, capped: bool, window: int | None) -> dict[str, Any]:
    """What the kernel is compiled for; rows and columns are padded to what tl.dot takes."""
    return {
        "GROUP": group,
        "SIZE": size,
        "BLOCK": block,
        "CAPPED": capped,
        "WINDOW": window or 0,
        "TILE": TILE,
        "ROWS": max(LEAST, triton.next_power_of_2(group)),
        "COLUMNS": max(LEAST, triton.next_power_of_2(size)),
    }


@triton.jit  # type: ignore[untyped-decorator]
def decode(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    tokens: tl.tensor,
    positions: tl.tensor,
    rows: tl.tensor,
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
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """The dots are in the type of q and cache, everything else in float32. Unwritten places are not read."""
    token = tl.load(tokens + tl.program_id(0)).to(tl.int64)
    head = tl.program_id(1)
    context = tl.load(positions + token) + 1
    table = tables + tl.load(rows + token).to(tl.int64) * table_stride
    heads, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    of_query = (head * GROUP + heads)[:, None]
    is_query = (heads < GROUP)[:, None] & (columns < SIZE)[None, :]
    query = tl.load(q + token * q_token + of_query * q_head + columns[None, :], mask=is_query, other=0.0)
    first = tl.maximum(context - WINDOW, 0) if WINDOW else 0

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mean = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first // TILE * TILE, context, TILE):
        places = start + tl.arange(0, TILE)
        seen = (places >= first) & (places < context)
        block = tl.load(table + places // BLOCK, mask=seen, other=0).to(tl.int64)
        at = block * block_stride + places % BLOCK * offset_stride + head * head_stride
        is_kept = seen[:, None] & (columns < SIZE)[None, :]
        key = tl.load(keys + at[:, None] + columns[None, :], mask=is_kept, other=0.0)
        value = tl.load(values + at[:, None] + columns[None, :], mask=is_kept, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if CAPPED:
            scores = soft_cap * (1 - 2 / (tl.exp(2 * scores / soft_cap) + 1))  # tanh
        scores = tl.where(seen[None, :], scores, float("-inf"))
        raised = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp(top - raised)
        weights = tl.exp(scores - raised[:, None])
        total = total * shrink + tl.sum(weights, 1)
        mean = mean * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        top = raised
    result = (mean / total[:, None]).to(query.dtype)
    tl.store(out + token * out_token + of_query * out_head + columns[None, :], result, mask=is_query)

"""The loops of `backends.kernels.cpu`, for float32 and for bfloat16 as int16 (see `numeric`).

Shapes as in `reference`. Each public function runs one or two parallel loops over rows, tokens or heads; the
private ones are their bodies, for one item.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.kernels.numeric import exp, largest, narrow, widen
from backends.kernels.team import jit, share

Array = NDArray[Any]

UNROTATED = -1  # for `angles`
ENDLESS = 2**62  # for `window`

_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)
_LOWEST = np.float32(-np.inf)
_GELU_SCALE, _GELU_CUBE = np.float32((8 / np.pi) ** 0.5), np.float32(0.044715)


@jit
def add_norm(residual: Array, update: Array, weight: Array, eps: Any, out: Array) -> None:
    share(_add_norm, len(residual), (residual, update, weight, eps, out))


@jit
def _add_norm(row: int, residual: Array, update: Array, weight: Array, eps: Any, out: Array) -> None:
    width = residual.shape[1]
    squares = _ZERO
    for i in range(width):
        x = residual[row, i] + widen(update[row, i])
        residual[row, i] = x
        squares += x * x
    inverse = _ONE / np.sqrt(squares / np.float32(width) + eps)
    for i in range(width):
        out[row, i] = narrow(residual[row, i] * inverse * weight[i], out[row, i])


@jit
def silu_mul(gate_up: Array, out: Array) -> None:
    share(_silu_mul, len(out), (gate_up, out))


@jit
def _silu_mul(row: int, gate_up: Array, out: Array) -> None:
    width = out.shape[1]
    for i in range(width):
        gate, up = widen(gate_up[row, i]), widen(gate_up[row, width + i])
        out[row, i] = narrow(gate / (_ONE + exp(-gate)) * up, out[row, i])


@jit
def gelu_mul(gate_up: Array, out: Array) -> None:
    share(_gelu_mul, len(out), (gate_up, out))


@jit
def _gelu_mul(row: int, gate_up: Array, out: Array) -> None:
    width = out.shape[1]
    for i in range(width):
        gate, up = widen(gate_up[row, i]), widen(gate_up[row, width + i])
        inner = _GELU_SCALE * (gate + _GELU_CUBE * gate * gate * gate)
        # x / 2 · (1 + tanh(y)) = x / (1 + exp(-2 y))
        out[row, i] = narrow(gate / (_ONE + exp(-inner)) * up, out[row, i])


@jit
def attention(
    layer: int,
    angles: int,
    window: int,
    scale: Any,
    cap: Any,
    qkv: Array,
    cos: Array,
    sin: Array,
    keys: Array,
    values: Array,
    positions: Array,
    turns: Array,
    rows: Array,
    tables: Array,
    tokens: Array,
    out: Array,
) -> None:
    """Rotate the queries in `qkv` in place, store keys and values, and attend for `tokens` only.

    `angles`, `window`: see `layout.LayerRule`; `cap`: see `layout.Scheme`, 0 for none; `turns`: Layout.angles.
    """
    share(
        _rotate_store,
        len(qkv),
        (layer, angles, qkv, cos, sin, keys, values, positions, turns, rows, tables),
    )
    kv_heads = keys.shape[3]
    share(
        _attend,
        len(tokens) * kv_heads,
        (layer, window, scale, cap, qkv, keys, values, positions, rows, tables, tokens, out),
    )


@jit
def _rotate_store(
    token: int,
    layer: int,
    angles: int,
    qkv: Array,
    cos: Array,
    sin: Array,
    keys: Array,
    values: Array,
    positions: Array,
    turns: Array,
    rows: Array,
    tables: Array,
) -> None:
    block_size, kv_heads, size = keys.shape[2:]
    position = positions[token]
    block = tables[rows[token], position // block_size]
    offset = position % block_size
    heads = qkv.shape[1] // size - 2 * kv_heads
    if angles != UNROTATED:
        for head in range(heads + kv_heads):
            _rotate(qkv, token, head * size, cos, sin, angles + turns[token])
    for head in range(kv_heads):
        key, value = (heads + head) * size, (heads + kv_heads + head) * size
        for i in range(size):
            keys[layer, block, offset, head, i] = qkv[token, key + i]
            values[layer, block, offset, head, i] = qkv[token, value + i]


@jit
def _rotate(qkv: Array, token: int, at: int, cos: Array, sin: Array, angle: int) -> None:
    half = cos.shape[1]
    for i in range(half):
        first, second = widen(qkv[token, at + i]), widen(qkv[token, at + half + i])
        c, s = cos[angle, i], sin[angle, i]
        qkv[token, at + i] = narrow(first * c - second * s, qkv[token, at + i])
        qkv[token, at + half + i] = narrow(second * c + first * s, qkv[token, at + i])


@jit
def _attend(
    item: int,
    layer: int,
    window: int,
    scale: Any,
    cap: Any,
    qkv: Array,
    keys: Array,
    values: Array,
    positions: Array,
    rows: Array,
    tables: Array,
    tokens: Array,
    out: Array,
) -> None:
    """One token, one key/value head and the query heads that share it."""
    block_size, kv_heads, size = keys.shape[2:]
    token, head = tokens[item // kv_heads], item % kv_heads
    row, context = rows[token], positions[token] + 1
    begin = max(0, context - window)
    # Whole blocks are read; what lies before the window in the first of them is hidden.
    aligned = begin // block_size * block_size
    hidden, seen = begin - aligned, context - aligned
    group = out.shape[1] // size // kv_heads
    queries = np.empty((group, size), np.float32)
    for g in range(group):
        for i in range(size):
            queries[g, i] = widen(qkv[token, (head * group + g) * size + i]) * scale
    weights = np.empty((group, seen), np.float32)
    for start in range(0, seen, block_size):
        count = min(block_size, seen - start)
        block = tables[row, (aligned + start) // block_size]
        _score(queries, keys, layer, block, head, count, weights, start)
    if cap > 0:
        _cap(weights, cap)
    weights[:, :hidden] = _LOWEST  # its exponential is nothing beside that of the largest, 1
    sums = np.zeros((group, size), np.float32)
    totals = np.empty(group, np.float32)
    for g in range(group):
        totals[g] = _exponentials(weights, g, seen)
    for start in range(0, seen, block_size):
        count = min(block_size, seen - start)
        block = tables[row, (aligned + start) // block_size]
        _sum(weights, start, values, layer, block, head, count, sums)
    for g in range(group):
        for i in range(size):
            at = (head * group + g) * size + i
            out[token, at] = narrow(sums[g, i] / totals[g], out[token, at])


@jit
def _score(
    queries: Array,
    keys: Array,
    layer: int,
    block: int,
    head: int,
    count: int,
    scores: Array,
    start: int,
) -> None:
    """scores[:, start + j] = queries · key j of the block, four keys at a time: a query is then read once."""
    group, size = queries.shape
    fours = count // 4 * 4
    for g in range(group):
        for j in range(0, fours, 4):
            a = b = c = d = _ZERO
            for i in range(size):
                q = queries[g, i]
                a += q * widen(keys[layer, block, j, head, i])
                b += q * widen(keys[layer, block, j + 1, head, i])
                c += q * widen(keys[layer, block, j + 2, head, i])
                d += q * widen(keys[layer, block, j + 3, head, i])
            at = start + j
            scores[g, at], scores[g, at + 1], scores[g, at + 2], scores[g, at + 3] = a, b, c, d
        for j in range(fours, count):
            a = _ZERO
            for i in range(size):
                a += queries[g, i] * widen(keys[layer, block, j, head, i])
            scores[g, start + j] = a


@jit
def _cap(scores: Array, cap: Any) -> None:
    """scores → cap · tanh(scores / cap)."""
    group, count = scores.shape
    for g in range(group):
        for j in range(count):
            scores[g, j] = cap * (_ONE - _TWO / (_ONE + exp(_TWO * scores[g, j] / cap)))


@jit
def _exponentials(scores: Array, row: int, count: int) -> Any:
    """scores[row, :count] → their exponentials, the largest being 1; returns the sum."""
    top = largest(scores, row, count)
    total = _ZERO
    for j in range(count):
        weight = exp(scores[row, j] - top)
        scores[row, j] = weight
        total += weight
    return total


@jit
def _sum(
    weights: Array,
    start: int,
    values: Array,
    layer: int,
    block: int,
    head: int,
    count: int,
    sums: Array,
) -> None:
    """sums += weights[:, start + j] · value j of the block, four values at a time: a sum is then read once."""
    group, size = sums.shape
    fours = count // 4 * 4
    for g in range(group):
        for j in range(0, fours, 4):
            at = start + j
            a, b, c, d = weights[g, at], weights[g, at + 1], weights[g, at + 2], weights[g, at + 3]
            for i in range(size):
                sums[g, i] += (
                    a * widen(values[layer, block, j, head, i])
                    + b * widen(values[layer, block, j + 1, head, i])
                    + c * widen(values[layer, block, j + 2, head, i])
                    + d * widen(values[layer, block, j + 3, head, i])
                )
        for j in range(fours, count):
            for i in range(size):
                sums[g, i] += weights[g, start + j] * widen(values[layer, block, j, head, i])

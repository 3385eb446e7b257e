"""Attention of few queries over some keys of the paged cache: those of a token that is generated, and of a draft.

As `chunks`, with the same sums in the same order; but where queries do not fill the registers, keys do. Some keys at a
time are turned on their side for that, so that a lane has one of them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.kernels.numeric import exp, largest, widen
from backends.kernels.sides import Side
from backends.kernels.softmax import EIGHTH, NOTHING, TILE, capped, total_of
from backends.kernels.team import jit
from backends.kernels.tiles import located
from backends.kernels.vectors import STEP, copy, multiply, turn

Array = NDArray[Any]

_TURNED = 2 * STEP  # keys that are turned at a time: a part of TILE
_ZERO = np.float32(0)


@jit
def scaled(qkv: Array, token: int, count: int, head: int, group: int, size: int, scale: Any) -> Any:
    """The scaled queries of `count` tokens [queries, size], query head g of the group for token t in row
    t · group + g."""
    queries = np.empty((count * group, size), np.float32)
    for t in range(count):
        for g in range(group):
            for i in range(size):
                queries[t * group + g, i] = widen(qkv[token + t, (head * group + g) * size + i]) * scale
    return queries


@jit
def attend(
    layer: int,
    window: int,
    cap: Any,
    queries: Array,
    keys: Side,
    values: Side,
    table: Array,
    head: int,
    position: int,
    group: int,
    begin: int,
    end: int,
    top: Array,
    total: Array,
    mean: Array,
) -> None:
    """As `chunks.attend`, for `queries` as `scaled` has them, whose size is a multiple of STEP."""
    count, size = queries.shape
    offsets = np.empty(TILE, np.int64)
    key, value = np.empty((size, _TURNED), np.float32), np.empty((TILE, size), np.float32)
    tiles = np.empty((TILE, size), np.float32), value
    scores = np.empty((count, TILE), np.float32)
    top[:], total[:], mean[:] = NOTHING, _ZERO, _ZERO
    for start in range(begin, end, TILE):
        many = min(TILE, end - start)
        there, beside = located(keys, values, layer, table, start, many, head, offsets, tiles)
        scores[:] = _ZERO
        for j in range(0, many, _TURNED):
            turn(there[0], offsets, j, size, key, 0)
            turn(there[0], offsets, j + STEP, size, key, STEP)
            if len(there[1]):
                _scale_columns(key, there[1], offsets[j:])
            multiply(queries, size, 1, key, size, scores, j, count)
        if cap > 0:
            _cap(scores, cap)
        ragged = start + TILE > position + 1 or start < position + (count - 1) // group + 1 - window
        if ragged:
            _hide(scores, start, position, group, window, NOTHING)
        _exponentials(scores, top, total, mean)
        if ragged:
            _hide(scores, start, position, group, window, _ZERO)
        _add_up(scores, total)
        for j in range(many):
            copy(beside[0], offsets[j], size, value, j)
        if len(beside[1]):
            _scale_rows(value, beside[1], offsets, many)
        multiply(scores, TILE, 1, value, many, mean, 0, count)


@jit
def _scale_columns(columns: Array, scales: Array, offsets: Array) -> None:
    """Multiply each by the scale of what lies at its offset."""
    size, count = columns.shape
    flat, factors = scales.reshape(-1), np.empty(count, np.float32)
    for j in range(count):
        factors[j] = flat[offsets[j] // size]
    for i in range(size):
        for j in range(count):
            columns[i, j] *= factors[j]


@jit
def _scale_rows(rows: Array, scales: Array, offsets: Array, count: int) -> None:
    """As `_scale_columns`, the first `count` of them."""
    flat, size = scales.reshape(-1), rows.shape[1]
    for j in range(count):
        factor = flat[offsets[j] // size]
        for i in range(size):
            rows[j, i] *= factor


@jit
def _cap(scores: Array, cap: Any) -> None:
    for m in range(len(scores)):
        for j in range(TILE):
            scores[m, j] = capped(scores[m, j], cap)


@jit
def _hide(scores: Array, start: int, position: int, group: int, window: int, value: Any) -> None:
    """Write `value` where a query does not see the key: after its token, or before its window."""
    for m in range(len(scores)):
        last = position + m // group - start
        for j in range(TILE):
            if j > last or last - j >= window:
                scores[m, j] = value


@jit
def _exponentials(scores: Array, top: Array, total: Array, mean: Array) -> None:
    """As in `chunks`."""
    for m in range(len(scores)):
        row, best = scores[m], max(top[m], largest(scores, m, TILE))
        for j in range(TILE):
            row[j] = exp(row[j] - best)
        before = exp(top[m] - best)
        top[m] = best
        total[m] *= before
        own = mean[m]
        for i in range(len(own)):
            own[i] *= before


@jit
def _add_up(scores: Array, total: Array) -> None:
    """As in `chunks`."""
    parts = np.empty((EIGHTH, 1), np.float32)
    for m in range(len(scores)):
        parts[:] = _ZERO
        for j in range(0, TILE, EIGHTH):
            for part in range(EIGHTH):
                parts[part, 0] += scores[m, j + part]
        total[m] += total_of(parts, 0)

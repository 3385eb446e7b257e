"""Attention of many queries over some keys of the paged cache, where they lie.

What makes a chunk after a long prefix slow is reading the prefix. Here all tokens of a chunk, with all query heads
of a key/value head, read it once: keys and values come in tiles, and each is multiplied by all those queries while
it is in the nearest cache. A query is a lane of the registers, so that scores, their exponentials and their sums need
nothing across lanes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.kernels.numeric import exp, widen
from backends.kernels.sides import Side
from backends.kernels.softmax import EIGHTH, NOTHING, TILE, capped, total_of
from backends.kernels.team import jit
from backends.kernels.tiles import fetch
from backends.kernels.vectors import STEP, maximum, multiply

Array = NDArray[Any]

_ZERO = np.float32(0)


@jit
def turned(qkv: Array, token: int, count: int, head: int, group: int, size: int, scale: Any) -> Any:
    """The scaled queries of `count` tokens [size, lanes], query head g of the group for token t in lane
    t · group + g; lanes that no query has are zero."""
    lanes = (count * group + STEP - 1) // STEP * STEP
    queries = np.zeros((size, lanes), np.float32)
    for t in range(count):
        for g in range(group):
            for i in range(size):
                queries[i, t * group + g] = widen(qkv[token + t, (head * group + g) * size + i]) * scale
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
    """`top`, `total` and `mean`, see `softmax.fold`, of the keys from `begin` to `end` - 1.

    `queries` as `turned` has them, of tokens at `position` and after; `window`: see `layout.LayerRule`; `cap`: see
    `layout.Scheme`, 0 for none.
    """
    size, lanes, count = len(queries), queries.shape[1], len(top)
    key, value = np.empty((TILE, size), np.float32), np.empty((TILE, size), np.float32)
    scores, sums = np.empty((TILE, lanes), np.float32), np.zeros((size, lanes), np.float32)
    tops, totals = np.empty(lanes, np.float32), np.zeros(lanes, np.float32)
    tops[:] = NOTHING
    for start in range(begin, end, TILE):
        many = min(TILE, end - start)
        tall = (many + EIGHTH - 1) // EIGHTH * EIGHTH
        fetch(keys, layer, table, start, many, head, key)
        fetch(values, layer, table, start, many, head, value)
        scores[:] = _ZERO
        multiply(key, size, 1, queries, size, scores, 0, many)
        if cap > 0:
            _cap(scores, many, cap)
        ragged = start + tall > position + 1 or start < position + (count - 1) // group + 1 - window
        if ragged:
            _hide(scores, tall, start, position, group, window, NOTHING)
        _exponentials(scores, tall, tops, totals, sums)
        if ragged:
            _hide(scores, tall, start, position, group, window, _ZERO)
        _add_up(scores, tall, totals)
        multiply(value, 1, size, scores, many, sums, 0, size)
    top[:], total[:] = tops[:count], totals[:count]
    for m in range(count):
        for i in range(size):
            mean[m, i] = sums[i, m]


@jit
def _cap(scores: Array, count: int, cap: Any) -> None:
    for j in range(count):
        for m in range(scores.shape[1]):
            scores[j, m] = capped(scores[j, m], cap)


@jit
def _hide(scores: Array, count: int, start: int, position: int, group: int, window: int, value: Any) -> None:
    """Write `value` where a query does not see the key: after its token, or before its window."""
    lanes = scores.shape[1]
    for j in range(count):
        behind = start + j - position  # tokens of the chunk that the key comes after
        first = min(max(behind, 0) * group, lanes)
        last = min(min(max(behind + window, 0), lanes) * group, lanes)
        row = scores[j]
        for m in range(first):
            row[m] = value
        for m in range(last, lanes):
            row[m] = value


@jit
def _exponentials(scores: Array, count: int, top: Array, total: Array, sums: Array) -> None:
    """scores → exp(scores - top), `top` being raised to the largest; what `total` and `sums` were made of before is
    brought under the new `top`."""
    lanes = len(top)
    before = np.empty(lanes, np.float32)
    before[:] = top
    for left in range(0, lanes, STEP):
        maximum(scores, left, count, top)
    for j in range(count):
        row = scores[j]
        for m in range(lanes):
            row[m] = exp(row[m] - top[m])
    for m in range(lanes):
        before[m] = exp(before[m] - top[m])
        total[m] *= before[m]
    for i in range(len(sums)):
        for m in range(lanes):
            sums[i, m] *= before[m]


@jit
def _add_up(scores: Array, count: int, total: Array) -> None:
    """Add the sum of each lane's weights to its total."""
    parts = np.zeros((EIGHTH, len(total)), np.float32)
    for j in range(count):
        row, part = scores[j], parts[j % EIGHTH]
        for m in range(len(part)):
            part[m] += row[m]
    for m in range(len(total)):
        total[m] += total_of(parts, m)

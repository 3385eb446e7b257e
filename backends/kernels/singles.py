"""Attention of few queries over some keys of the paged cache: those of a token that is generated, and of a draft.

As `chunks`, with the same sums in the same order; but where queries do not fill the registers, keys do. Some keys at a
time are turned on their side for that, so that a lane has one of them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.kernels.cached import mix, score
from backends.kernels.numeric import exp, widen
from backends.kernels.sides import Side
from backends.kernels.softmax import NOTHING, TILE, capped
from backends.kernels.team import jit
from backends.kernels.tiles import locate, readable
from backends.kernels.vectors import STEP, row_maximum, row_sum

Array = NDArray[Any]

_ZERO = np.float32(0)


@jit
def scaled(qkv: Array, token: int, count: int, head: int, group: int, size: int, scale: Any) -> Any:
    """The scaled queries of `count` tokens [queries, size], query head g of the group for token t in row
    t · group + g."""
    queries = np.empty((count * group, size), np.float32)
    for m in range(count * group):
        first = (head * group + m % group) * size
        source, target = qkv[token + m // group, first : first + size], queries[m]
        for i in range(size):
            target[i] = widen(source[i]) * scale
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
    after: Array,
    top: Array,
    total: Array,
    mean: Array,
) -> None:
    """As `chunks.attend`, for `queries` as `scaled` has them, whose size is a multiple of STEP.

    `after` [TILE]: which keys and values will be read after these, see `tiles.locate`.
    """
    count, size = queries.shape
    places, coming = np.empty(TILE, np.int64), np.empty(TILE, np.int64)
    scores, kept = np.empty((count, TILE), np.float32), np.empty(count, np.float32)
    top[:], total[:], mean[:] = NOTHING, _ZERO, _ZERO
    locate(keys[0], layer, table, begin, min(TILE, end - begin), head, places)
    for start in range(begin, end, TILE):
        many, last = min(TILE, end - start), start + TILE >= end
        tall = (many + STEP - 1) // STEP * STEP
        if not last:
            locate(keys[0], layer, table, start + TILE, min(TILE, end - start - TILE), head, coming)
        there, beside = readable(keys, values, layer, table, start, many, head, size, places)
        score(queries, there[0], there[1], places, many, scores)
        if cap > 0:
            _cap(scores, tall, cap)
        ragged = start + tall > position + 1 or start < position + (count - 1) // group + 1 - window
        if ragged:
            _hide(scores, tall, start, position, group, window, NOTHING)
        _exponentials(scores, tall, top, kept)
        if ragged:
            _hide(scores, tall, start, position, group, window, _ZERO)
        _add_up(scores, tall, kept, total)
        mix(
            scores, beside[0], beside[1], places, many, kept, mean,
            keys[0], values[0], after if last else coming,
        )  # fmt: skip
        places, coming = coming, places


@jit
def _cap(scores: Array, count: int, cap: Any) -> None:
    for m in range(len(scores)):
        for j in range(count):
            scores[m, j] = capped(scores[m, j], cap)


@jit
def _hide(scores: Array, count: int, start: int, position: int, group: int, window: int, value: Any) -> None:
    """Write `value` where a query does not see the key: after its token, or before its window."""
    for m in range(len(scores)):
        last = position + m // group - start
        for j in range(count):
            if j > last or last - j >= window:
                scores[m, j] = value


@jit
def _exponentials(scores: Array, count: int, top: Array, kept: Array) -> None:
    """As in `chunks`; `kept`: by what all that was summed before is to be multiplied."""
    for m in range(len(top)):
        best = max(top[m], row_maximum(scores, m, count))
        kept[m], top[m] = top[m] - best, best
    for m in range(len(top)):
        row, best = scores[m], top[m]
        for j in range(count):
            row[j] = exp(row[j] - best)
    for m in range(len(top)):
        kept[m] = exp(kept[m])


@jit
def _add_up(scores: Array, count: int, kept: Array, total: Array) -> None:
    """As in `chunks`."""
    for m in range(len(total)):
        total[m] = total[m] * kept[m] + row_sum(scores, m, count)

"""Attention of chunks: several tokens of one sequence over the paged cache, where it lies.

What makes a chunk after a long prefix slow is reading the prefix. Here all tokens of a chunk, with all query heads
of a key/value head, read it once: keys and values come in tiles of TILE positions, and each is multiplied by
all those queries while it is in the nearest cache. A query is a lane of the registers, so that scores, their
exponentials and their sums need nothing across lanes; the softmax is the online one (arXiv:1805.02867).

Work is cut in two ways, by a `Plan`: long chunks into groups of queries, and the keys of a group into parts, so that
a few tokens over a long prefix keep all threads busy too. The parts of a group are merged at the end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.kernels.layout import Span
from backends.kernels.numeric import exp, narrow, widen
from backends.kernels.team import jit, share
from backends.kernels.vectors import STEP, maximum, multiply, total_of

Array = NDArray[Any]

TILE = 64  # keys at a time
LANES = 64  # queries at a time: as many tokens as have so many heads of one group
PART = 512  # keys of a part, at least
ITEMS = 24  # parts and groups of a span, over all key/value heads, at which it is not cut further

_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)
_NOTHING = np.float32(-1e30)  # a score of what is hidden; finite, so that no difference of two is NaN


@dataclass(frozen=True, slots=True)
class Plan:
    """The work on some spans, for all layers.

    pieces  int32 [pieces, 6]: row of the tables, first token in the batch, tokens, position of the first token, and
            the range of keys: one group of queries over one part of what it sees
    groups  int32 [groups + 1]: where the pieces of each group begin, and where the last ones end
    """

    pieces: Array
    groups: Array

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int, Span]], heads: int, kv_heads: int) -> "Plan":
        """`spans`: row of the tables, first token in the batch, and the span itself."""
        pieces: list[tuple[int, ...]] = []
        groups = [0]
        for row, token, span in spans:
            for first, count in cut(span.count, max(1, LANES * kv_heads // heads)):
                position = span.start + first
                wanted = -(-ITEMS * count // (span.count * kv_heads))
                for begin, size in cut(position + count, PART, wanted):
                    pieces.append((row, token + first, count, position, begin, begin + size))
                groups.append(len(pieces))
        return cls(np.array(pieces, np.int32).reshape(-1, 6), np.array(groups, np.int32))


def cut(total: int, size: int, most: int | None = None) -> Sequence[tuple[int, int]]:
    """(first, count) of parts as even as can be: of `size` at most or, where there may only be `most` parts, of
    `size` at least."""
    parts = -(-total // size) if most is None else max(1, min(total // size, most))
    edges = [total * part // parts for part in range(parts + 1)]
    return [(first, last - first) for first, last in zip(edges, edges[1:], strict=False)]


@jit
def attend(
    layer: int,
    window: int,
    scale: Any,
    cap: Any,
    qkv: Array,
    keys: Array,
    values: Array,
    tables: Array,
    pieces: Array,
    groups: Array,
    out: Array,
) -> None:
    """Attention of the tokens in `pieces`, see Plan, whose queries in `qkv` are rotated and whose keys are stored.

    Shapes as in `loops`; `window`: see `layout.LayerRule`; `cap`: see `layout.Scheme`, 0 for none.
    """
    kv_heads, size = keys.shape[3:]
    group = out.shape[1] // size // kv_heads
    lanes = 0
    for piece in range(len(pieces)):
        lanes = max(lanes, _lanes(pieces[piece, 2] * group))
    items = len(pieces) * kv_heads
    # Of each piece and head: the largest score of each query, the sum of its weights, and that of its values.
    tops, totals = np.empty((items, lanes), np.float32), np.empty((items, lanes), np.float32)
    sums = np.empty((items, _padded(size), lanes), np.float32)
    share(
        _attend,
        items,
        (layer, window, scale, cap, qkv, keys, values, tables, pieces, group, tops, totals, sums),
    )
    share(_merge, (len(groups) - 1) * kv_heads, (pieces, groups, group, kv_heads, tops, totals, sums, out))


@jit
def _padded(count: int) -> int:
    return (count + STEP - 1) // STEP * STEP


_lanes = _padded


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
    tables: Array,
    pieces: Array,
    group: int,
    tops: Array,
    totals: Array,
    sums: Array,
) -> None:
    """One piece and one key/value head."""
    kv_heads, size = keys.shape[3:]
    piece, head = item // kv_heads, item % kv_heads
    row, token, count, position = pieces[piece, 0], pieces[piece, 1], pieces[piece, 2], pieces[piece, 3]
    begin, end = max(pieces[piece, 4], position + 1 - window), pieces[piece, 5]
    lanes, tall = _padded(count * group), _padded(size)
    queries = np.zeros((tall, lanes), np.float32)
    _turn(qkv, token, head, count, group, size, scale, queries)
    key, value = np.zeros((TILE, tall), np.float32), np.zeros((TILE, tall), np.float32)
    scores = np.empty((TILE, lanes), np.float32)
    top, total, mean = tops[item, :lanes], totals[item, :lanes], np.zeros((tall, lanes), np.float32)
    top[:], total[:] = _NOTHING, _ZERO
    for start in range(begin, end, TILE):
        many = min(TILE, end - start)
        _fetch(keys, layer, tables, row, start, many, head, key)
        _fetch(values, layer, tables, row, start, many, head, value)
        scores[:] = _ZERO
        multiply(key, tall, 1, queries, size, scores, _padded(many))
        if cap > 0:
            _cap(scores, many, cap)
        ragged = start + many > position + 1 or start < position + count - window
        if ragged:
            _hide(scores, many, start, position, group, window, _NOTHING)
        _exponentials(scores, many, top, total, mean)
        if ragged:
            _hide(scores, many, start, position, group, window, _ZERO)
        for left in range(0, lanes, STEP):
            total_of(scores, left, many, total)
        multiply(value, 1, tall, scores, many, mean, tall)
    sums[item, :, :lanes] = mean


@jit
def _turn(
    qkv: Array, token: int, head: int, count: int, group: int, size: int, scale: Any, queries: Array
) -> None:
    """queries[:, t · group + g] = query head g of the group for token t, scaled."""
    for t in range(count):
        for g in range(group):
            for i in range(size):
                queries[i, t * group + g] = widen(qkv[token + t, (head * group + g) * size + i]) * scale


@jit
def _fetch(
    cache: Array, layer: int, tables: Array, row: int, start: int, count: int, head: int, tile: Array
) -> None:
    """tile[j] = what the cache has of the position start + j."""
    block_size, size = cache.shape[2], cache.shape[4]
    done = 0
    while done < count:
        block, offset = tables[row, (start + done) // block_size], (start + done) % block_size
        run = min(block_size - offset, count - done)
        for j in range(run):
            source, target = cache[layer, block, offset + j, head], tile[done + j]
            for i in range(size):
                target[i] = widen(source[i])
        done += run


@jit
def _cap(scores: Array, count: int, cap: Any) -> None:
    """scores → cap · tanh(scores / cap)."""
    for j in range(count):
        for m in range(scores.shape[1]):
            scores[j, m] = cap * (_ONE - _TWO / (_ONE + exp(_TWO * scores[j, m] / cap)))


@jit
def _hide(scores: Array, count: int, start: int, position: int, group: int, window: int, value: Any) -> None:
    """Write `value` where a query does not see the key: after its token, or before its window."""
    for j in range(count):
        for m in range(scores.shape[1]):
            behind = position + m // group - (start + j)
            if behind < 0 or behind >= window:
                scores[j, m] = value


@jit
def _exponentials(scores: Array, count: int, top: Array, total: Array, mean: Array) -> None:
    """scores → exp(scores - top), `top` being raised to the largest; `total` gets their sum; what `total` and `mean`
    were made of before is brought under the new `top`."""
    lanes = len(top)
    before = top.copy()
    for left in range(0, lanes, STEP):
        maximum(scores, left, count, top)
    for j in range(count):
        for m in range(lanes):
            scores[j, m] -= top[m]
    flat = scores.reshape(-1)[: count * lanes]  # one long loop: rows are too short to fill the registers
    for m in range(len(flat)):
        flat[m] = exp(flat[m])
    for m in range(lanes):
        before[m] = exp(before[m] - top[m])
        total[m] *= before[m]
    for i in range(len(mean)):
        for m in range(lanes):
            mean[i, m] *= before[m]


@jit
def _merge(
    item: int,
    pieces: Array,
    groups: Array,
    group: int,
    kv_heads: int,
    tops: Array,
    totals: Array,
    sums: Array,
    out: Array,
) -> None:
    """The parts of one group of queries, one key/value head, into `out` (arXiv:2205.14135, section 3.1)."""
    place, head = item // kv_heads, item % kv_heads
    first, last = groups[place], groups[place + 1]
    token, size = pieces[first, 1], out.shape[1] // kv_heads // group
    for m in range(pieces[first, 2] * group):
        best = _NOTHING
        for piece in range(first, last):
            best = max(best, tops[piece * kv_heads + head, m])
        total, mean = _ZERO, np.zeros(size, np.float32)
        for piece in range(first, last):
            at = piece * kv_heads + head
            weight = exp(tops[at, m] - best)
            total += weight * totals[at, m]
            for i in range(size):
                mean[i] += weight * sums[at, i, m]
        target = out[token + m // group, (head * group + m % group) * size :]
        for i in range(size):
            target[i] = narrow(mean[i] / total, target[i])

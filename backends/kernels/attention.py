"""Attention over the paged cache on CPUs: how a batch's work is cut, and how its parts come together.

Work is cut in two ways, by a `Plan`: long chunks into groups of queries and, so that a few tokens over a long prefix
keep all threads busy too, the keys of a group into the parts of `softmax`. How it is cut, and which of two kernels does
it, changes no answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.kernels import chunks, singles
from backends.kernels.cached import FEW
from backends.kernels.layout import Span
from backends.kernels.sides import Side
from backends.kernels.softmax import NOTHING, PART, TILE, finish, fold, seen
from backends.kernels.team import deal, following, jit
from backends.kernels.tiles import locate
from backends.kernels.vectors import STEP

Array = NDArray[Any]

LANES = 64  # queries of a group: as many tokens as have so many heads of one key/value head
ITEMS = 24  # groups of a batch, over all key/value heads, from which on no keys are cut

_chunk, _single, _turned, _scaled = chunks.attend, singles.attend, chunks.turned, singles.scaled


@dataclass(frozen=True, slots=True)
class Plan:
    """The work on some spans, for all layers.

    pieces  int32 [pieces, 6]: row of the tables, first token in the batch, tokens, position of the first token, and
            the range of parts: one group of queries over one part of what it sees, or over all of it
    groups  int32 [groups + 1]: where the pieces of each group that is cut begin, and where the last ones end; what
            comes after these pieces is whole
    """

    pieces: Array
    groups: Array

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int, Span]], heads: int, kv_heads: int) -> "Plan":
        """`spans`: row of the tables, first token in the batch, and the span itself."""
        tokens = max(1, LANES * kv_heads // heads)
        groups = [
            (row, token + first, count, span.start + first)
            for row, token, span in spans
            for first, count in cut(span.count, tokens)
        ]
        busy = len(groups) * kv_heads >= ITEMS
        pieces: list[tuple[int, ...]] = []
        whole: list[tuple[int, ...]] = []
        edges = [0]
        for group in groups:
            parts = -(-(group[3] + group[2]) // PART)
            if busy or parts == 1:
                whole.append((*group, 0, parts))
            else:
                pieces += [(*group, part, part + 1) for part in range(parts)]
                edges.append(len(pieces))
        return cls(np.array(pieces + whole, np.int32).reshape(-1, 6), np.array(edges, np.int32))


def cut(total: int, size: int) -> Sequence[tuple[int, int]]:
    """(first, count) of parts as even as can be, of `size` at most."""
    parts = -(-total // size)
    edges = [total * part // parts for part in range(parts + 1)]
    return [(first, last - first) for first, last in zip(edges, edges[1:], strict=False)]


@jit
def attend(
    layer: int,
    size: int,
    window: int,
    scale: Any,
    cap: Any,
    qkv: Array,
    keys: Side,
    values: Side,
    tables: Array,
    pieces: Array,
    groups: Array,
    out: Array,
) -> None:
    """Attention of the tokens in `pieces`, see Plan, whose queries in `qkv` are rotated and whose keys are stored.

    Shapes as in `reference`; `size`: of a head; `window`: see `layout.LayerRule`; `cap`: see `layout.Scheme`, 0 for
    none.
    """
    kv_heads = keys[0].shape[3]
    group = out.shape[1] // size // kv_heads
    cut, lanes = groups[-1], 0
    for piece in range(cut):
        lanes = max(lanes, pieces[piece, 2] * group)
    tops, totals = np.empty((2, cut * kv_heads, lanes), np.float32)
    means = np.empty((cut * kv_heads, lanes, size), np.float32)
    deal(
        _attend,
        len(pieces) * kv_heads,
        (layer, window, scale, cap, qkv, keys, values, tables, pieces, group, cut, tops, totals, means, out),
    )
    if cut:
        deal(
            _merge, (len(groups) - 1) * kv_heads, (pieces, groups, group, kv_heads, tops, totals, means, out)
        )


@jit
def _attend(
    item: int,
    layer: int,
    window: int,
    scale: Any,
    cap: Any,
    qkv: Array,
    keys: Side,
    values: Side,
    tables: Array,
    pieces: Array,
    group: int,
    cut: int,
    tops: Array,
    totals: Array,
    means: Array,
    out: Array,
) -> None:
    """One piece and one key/value head."""
    kv_heads, size = keys[0].shape[3], means.shape[2]
    piece, head = item // kv_heads, item % kv_heads
    table, token, tokens, position = (
        tables[pieces[piece, 0]],
        pieces[piece, 1],
        pieces[piece, 2],
        pieces[piece, 3],
    )
    count = tokens * group
    top, total, mean = _nothing(count, size)
    own_top, own_total, own_mean = _nothing(count, size)
    after = np.zeros(TILE, np.int64)
    few = count <= FEW and size % STEP == 0
    if few:
        queries = _scaled(qkv, token, tokens, head, group, size, scale)
    else:
        queries = _turned(qkv, token, tokens, head, group, size, scale)
    for part in range(pieces[piece, 4], pieces[piece, 5]):
        begin, end = seen(position, tokens, window, part)
        if begin >= end:
            continue
        if few:
            _next(item, part, layer, window, keys[0], tables, pieces, after)
            _single(
                layer, window, cap, queries, keys, values, table, head, position, group, begin, end, after,
                own_top, own_total, own_mean,
            )  # fmt: skip
        else:
            _chunk(
                layer, window, cap, queries, keys, values, table, head, position, group, begin, end,
                own_top, own_total, own_mean,
            )  # fmt: skip
        fold(top, total, mean, own_top, own_total, own_mean)
    if piece < cut:
        tops[item, :count], totals[item, :count], means[item, :count] = top, total, mean
    else:
        finish(total, mean, token, head, group, out)


@jit
def _next(
    item: int, part: int, layer: int, window: int, cache: Array, tables: Array, pieces: Array, after: Array
) -> None:
    """`after` = where the first tile lies that will be read after a part, if there is any: of the next part, or of the
    item that this thread is likely to come to next."""
    kv_heads = cache.shape[3]
    if part + 1 == pieces[item // kv_heads, 5]:
        item = following(item, len(pieces) * kv_heads)
        if item >= len(pieces) * kv_heads:
            return
        part = pieces[item // kv_heads, 4] - 1
    row, _, tokens, position = pieces[item // kv_heads, :4]
    begin, end = seen(position, tokens, window, part + 1)
    if begin < end:
        locate(cache, layer, tables[row], begin, min(TILE, end - begin), item % kv_heads, after)


@jit
def _nothing(count: int, size: int) -> Any:
    """What no keys at all come to, see `softmax.fold`."""
    top = np.empty(count, np.float32)
    top[:] = NOTHING
    return top, np.zeros(count, np.float32), np.zeros((count, size), np.float32)


@jit
def _merge(
    item: int,
    pieces: Array,
    groups: Array,
    group: int,
    kv_heads: int,
    tops: Array,
    totals: Array,
    means: Array,
    out: Array,
) -> None:
    """The pieces of one group that was cut, one key/value head, into `out`."""
    place, head = item // kv_heads, item % kv_heads
    token, count = pieces[groups[place], 1], pieces[groups[place], 2] * group
    top, total, mean = _nothing(count, means.shape[2])
    for piece in range(groups[place], groups[place + 1]):
        at = piece * kv_heads + head
        fold(top, total, mean, tops[at], totals[at], means[at])
    finish(total, mean, token, head, group, out)

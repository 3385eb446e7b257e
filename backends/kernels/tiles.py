"""Tiles of the paged cache: some positions of one key/value head, in float32, or where they lie."""

from typing import Any

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from backends.kernels.numeric import widen
from backends.kernels.sides import Side, load_record, of_records, scale_of
from backends.kernels.team import jit

Array = NDArray[Any]


def fetch(side: Side, layer: int, table: Array, start: int, count: int, head: int, tile: Array) -> None:
    """tile[j] = what the cache has of the position start + j."""
    raise NotImplementedError("for compiled loops alone")


@overload(fetch)  # type: ignore[untyped-decorator]
def _fetch(side: Any, layer: Any, table: Any, start: Any, count: Any, head: Any, tile: Any) -> Any:
    chosen = _fetch_records if of_records(side) else _fetch_numbers

    def fetched(side: Any, layer: Any, table: Any, start: Any, count: Any, head: Any, tile: Any) -> None:
        chosen(side, layer, table, start, count, head, tile)

    return fetched


@jit
def _fetch_numbers(
    side: Side, layer: int, table: Array, start: int, count: int, head: int, tile: Array
) -> None:
    """A loop of its own for a whole tile: a call for each vector would cost as much as the vector."""
    cache = side[0]
    block_size, size = cache.shape[2], cache.shape[4]
    done = 0
    while done < count:
        block, offset = table[(start + done) // block_size], (start + done) % block_size
        run = min(block_size - offset, count - done)
        for j in range(run):
            source, target = cache[layer, block, offset + j, head], tile[done + j]
            scale = scale_of(side, layer, block, offset + j, head)
            for i in range(size):
                target[i] = widen(source[i]) * scale
        done += run


@jit
def _fetch_records(
    side: Side, layer: int, table: Array, start: int, count: int, head: int, tile: Array
) -> None:
    block_size = side[0].shape[2]
    for j in range(count):
        position = start + j
        load_record(side, layer, table[position // block_size], position % block_size, head, tile[j])


def located(
    keys: Side,
    values: Side,
    layer: int,
    table: Array,
    start: int,
    count: int,
    head: int,
    offsets: Array,
    tiles: tuple[Array, Array],
) -> tuple[Side, Side]:
    """Keys and values of `count` positions from `start` on, with their scales: each vector is so far into the arrays as
    `offsets` say then; what is behind `count` there is as the last one.

    Registers read most types where they lie. Records are first written to `tiles`, [at least count, head_dim] each.
    """
    raise NotImplementedError("for compiled loops alone")


@overload(located)  # type: ignore[untyped-decorator]
def _located(
    keys: Any,
    values: Any,
    layer: Any,
    table: Any,
    start: Any,
    count: Any,
    head: Any,
    offsets: Any,
    tiles: Any,
) -> Any:
    def in_place(
        keys: Any, values: Any, layer: Any, table: Any, start: Any, count: Any, head: Any, offsets: Any, tiles: Any
    ) -> Any:  # fmt: skip
        _locate(keys[0], layer, table, start, count, head, offsets)
        return keys, values

    def written(
        keys: Any, values: Any, layer: Any, table: Any, start: Any, count: Any, head: Any, offsets: Any, tiles: Any
    ) -> Any:  # fmt: skip
        fetch(keys, layer, table, start, count, head, tiles[0])
        fetch(values, layer, table, start, count, head, tiles[1])
        for j in range(len(offsets)):
            offsets[j] = min(j, count - 1) * tiles[0].shape[1]
        no_scales = np.empty((0, 0, 0, 0), np.float32)
        return (tiles[0], no_scales), (tiles[1], no_scales)

    return written if of_records(keys) else in_place


@jit
def _locate(
    cache: Array, layer: int, table: Array, start: int, count: int, head: int, offsets: Array
) -> None:
    """How far into the cache they are."""
    blocks, block_size, kv_heads, size = cache.shape[1:]
    done = 0
    while done < count:
        block, offset = table[(start + done) // block_size], (start + done) % block_size
        run = min(block_size - offset, count - done)
        first = (((layer * blocks + block) * block_size + offset) * kv_heads + head) * size
        for j in range(run):
            offsets[done + j] = first + j * kv_heads * size
        done += run
    offsets[count:] = offsets[count - 1]

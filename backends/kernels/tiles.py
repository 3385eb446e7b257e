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


@jit
def locate(cache: Array, layer: int, table: Array, start: int, count: int, head: int, places: Array) -> None:
    """places[j] = number of the vector of the position start + j among all of `cache`; behind `count` as the last."""
    blocks, block_size, kv_heads = cache.shape[1:4]
    done = 0
    while done < count:
        block, offset = table[(start + done) // block_size], (start + done) % block_size
        run = min(block_size - offset, count - done)
        first = ((layer * blocks + block) * block_size + offset) * kv_heads + head
        for j in range(run):
            places[done + j] = first + j * kv_heads
        done += run
    places[count:] = places[count - 1]


def readable(
    keys: Side,
    values: Side,
    layer: int,
    table: Array,
    start: int,
    count: int,
    head: int,
    size: int,
    places: Array,
) -> tuple[Side, Side]:
    """Keys and values [.., size] in which registers can read what `places` says, after `locate`.

    They read most types where they lie. Records are written out, and `places` becomes what says where.
    """
    raise NotImplementedError("for compiled loops alone")


@overload(readable)  # type: ignore[untyped-decorator]
def _readable(
    keys: Any, values: Any, layer: Any, table: Any, start: Any, count: Any, head: Any, size: Any, places: Any
) -> Any:
    def in_place(
        keys: Any, values: Any, layer: Any, table: Any, start: Any, count: Any, head: Any, size: Any, places: Any
    ) -> Any:  # fmt: skip
        return keys, values

    def written(
        keys: Any, values: Any, layer: Any, table: Any, start: Any, count: Any, head: Any, size: Any, places: Any
    ) -> Any:  # fmt: skip
        tiles, no_scales = np.empty((2, count, size), np.float32), np.empty((0, 0, 0, 0), np.float32)
        fetch(keys, layer, table, start, count, head, tiles[0])
        fetch(values, layer, table, start, count, head, tiles[1])
        for j in range(len(places)):
            places[j] = min(j, count - 1)
        return (tiles[0], no_scales), (tiles[1], no_scales)

    return written if of_records(keys) else in_place

"""Tiles of the paged cache: some positions of one key/value head, in float32, or where they lie."""

from typing import Any

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from backends.kernels.sides import Side, load, of_records
from backends.kernels.team import jit

Array = NDArray[Any]


@jit
def fetch(side: Side, layer: int, table: Array, start: int, count: int, head: int, tile: Array) -> None:
    """tile[j] = what the cache has of the position start + j."""
    block_size = side[0].shape[2]
    done = 0
    while done < count:
        block, offset = table[(start + done) // block_size], (start + done) % block_size
        run = min(block_size - offset, count - done)
        for j in range(run):
            load(side, layer, block, offset + j, head, tile[done + j])
        done += run


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

"""One side of the KV cache, its keys or its values, as the loops for CPUs have it.

That is a pair: the array [layers, blocks, block_size, kv_heads, head_dim] in float32, bfloat16 as int16, or int8, and
the scales of int8 [layers, blocks, block_size, kv_heads], empty for the others. Four bits are uint8, the records of
`kv_int4` in the place of head_dim. See also `kv_formats`; what is stored here equals what these store.

Which loops store and read a side is decided by its type when they are compiled.
"""

from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from backends.kernels import kv_int4
from backends.kernels.kv_formats import LARGEST, LEAST
from backends.kernels.kv_int4 import GROUP, HEADER
from backends.kernels.numeric import narrow, widen
from backends.kernels.team import jit

Array = NDArray[Any]
Side = tuple[Array, Array]

_LARGEST, _LEAST = np.float32(LARGEST[torch.int8]), np.float32(LEAST)
_HIGHEST, _LEAST_OF_FOUR = np.float32(kv_int4.HIGHEST), np.float32(kv_int4.LEAST)
_ZERO, _ONE = np.float32(0), np.float32(1)
_BFLOAT16 = np.int16(0)  # for `narrow`


def side(cache: torch.Tensor, scales: torch.Tensor | None) -> Side:
    """Their memory; no copy."""
    return array(cache), np.empty((0, 0, 0, 0), np.float32) if scales is None else scales.numpy()


def array(tensor: torch.Tensor) -> Array:
    """The tensor's memory as loops take it: bfloat16 as int16."""
    found: Array = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return found


def of_records(side: Any) -> bool:
    """Whether a side of this type, as numba has it, is of four bits."""
    return bool(side[0].dtype == types.uint8)


def store(vector: Array, side: Side, layer: int, block: int, offset: int, head: int) -> None:
    """Keep one vector [head_dim], float32 or bfloat16. NaN and infinity come back as NaN, except as they are."""
    raise NotImplementedError("for compiled loops alone")


@overload(store)  # type: ignore[untyped-decorator]
def _store(vector: Any, side: Any, layer: Any, block: Any, offset: Any, head: Any) -> Any:
    chosen = _store_record if of_records(side) else _store_scaled

    def stored(vector: Any, side: Any, layer: Any, block: Any, offset: Any, head: Any) -> None:
        chosen(vector, side, layer, block, offset, head)

    return stored


@jit
def _store_scaled(vector: Array, side: Side, layer: int, block: int, offset: int, head: int) -> None:
    cache, scales = side
    target, scale = cache[layer, block, offset, head], _ONE
    if len(scales):
        largest = _ZERO
        for i in range(len(vector)):
            x = abs(widen(vector[i]))
            if x > largest or x != x:
                largest = x
        scale = (_LEAST if largest < _LEAST else largest) / _LARGEST
        scales[layer, block, offset, head] = scale
    for i in range(len(vector)):
        target[i] = narrow(widen(vector[i]) / scale, target[i])


@jit
def scale_of(side: Side, layer: int, block: int, offset: int, head: int) -> Any:
    """What the numbers of one vector, which is no record, are to be multiplied by."""
    return side[1][layer, block, offset, head] if len(side[1]) else _ONE


@jit
def _store_record(vector: Array, side: Side, layer: int, block: int, offset: int, head: int) -> None:
    size, record = len(vector), side[0][layer, block, offset, head]
    for begin in range(0, size, GROUP):
        half = min(GROUP, size - begin) // 2
        scale, least = _range(vector, begin, 2 * half)
        _put(record, size // 2 + begin // GROUP * HEADER, scale, least)
        for i in range(half):
            low = _code(widen(vector[begin + i]), scale, least)
            high = _code(widen(vector[begin + half + i]), scale, least)
            record[begin // 2 + i] = low | high << 4


@jit
def load_record(side: Side, layer: int, block: int, offset: int, head: int, target: Array) -> None:
    """target [head_dim], float32, = the vector that is kept there."""
    size, record = len(target), side[0][layer, block, offset, head]
    for begin in range(0, size, GROUP):
        half = min(GROUP, size - begin) // 2
        at = size // 2 + begin // GROUP * HEADER
        scale, least = _number(record, at), _number(record, at + 2)
        for i in range(half):
            byte = record[begin // 2 + i]
            target[begin + i] = np.float32(byte & 15) * scale + least
            target[begin + half + i] = np.float32(byte >> 4) * scale + least


@jit
def _range(vector: Array, begin: int, count: int) -> Any:
    """The scale and the least number of a group, as bfloat16 holds them; NaN where there is any."""
    least = most = widen(vector[begin])
    for i in range(begin + 1, begin + count):
        x = widen(vector[i])
        if x < least or x != x:
            least = x
        if x > most or x != x:
            most = x
    least = widen(narrow(least, _BFLOAT16))
    scale = (most - least) / _HIGHEST
    return widen(narrow(_LEAST_OF_FOUR if scale < _LEAST_OF_FOUR else scale, _BFLOAT16)), least


@jit
def _code(x: Any, scale: Any, least: Any) -> Any:
    step = (x - least) / scale
    step = _HIGHEST if step > _HIGHEST else step
    return np.uint8(np.rint(step if step > _ZERO else _ZERO))  # of NaN too


@jit
def _put(record: Array, at: int, scale: Any, least: Any) -> None:
    first, second = np.int32(narrow(scale, _BFLOAT16)), np.int32(narrow(least, _BFLOAT16))
    record[at], record[at + 1] = np.uint8(first & 255), np.uint8(first >> 8 & 255)
    record[at + 2], record[at + 3] = np.uint8(second & 255), np.uint8(second >> 8 & 255)


@jit
def _number(record: Array, at: int) -> Any:
    return widen(np.int16(np.int32(record[at]) | np.int32(record[at + 1]) << 8))

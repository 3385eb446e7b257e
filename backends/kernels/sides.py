"""One side of the KV cache, its keys or its values, as the loops for CPUs have it.

That is a pair: the array [layers, blocks, block_size, kv_heads, head_dim] in float32, bfloat16 as int16, or int8, and
the scales of int8 [layers, blocks, block_size, kv_heads], empty for the others. See `kv_formats`, which this equals.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backends.kernels.kv_formats import LARGEST, LEAST
from backends.kernels.numeric import narrow, widen
from backends.kernels.team import exactly

Array = NDArray[Any]
Side = tuple[Array, Array]

_LARGEST, _LEAST = np.float32(LARGEST[torch.int8]), np.float32(LEAST)
_ZERO, _ONE = np.float32(0), np.float32(1)


def side(cache: torch.Tensor, scales: torch.Tensor | None) -> Side:
    """Their memory; no copy."""
    return array(cache), np.empty((0, 0, 0, 0), np.float32) if scales is None else scales.numpy()


def array(tensor: torch.Tensor) -> Array:
    """The tensor's memory as loops take it: bfloat16 as int16."""
    found: Array = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return found


@exactly
def store(vector: Array, side: Side, layer: int, block: int, offset: int, head: int) -> None:
    """Keep one vector [head_dim], float32 or bfloat16. With a scale: NaN and infinity come back as NaN."""
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


@exactly
def scale_of(side: Side, layer: int, block: int, offset: int, head: int) -> Any:
    """What the numbers of one vector are to be multiplied by."""
    return side[1][layer, block, offset, head] if len(side[1]) else _ONE

"""The loops of `backends.kernels.cpu`, for float32 and for bfloat16 as int16 (see `numeric`).

Shapes as in `reference`. Each public function runs one or two parallel loops over rows, tokens or heads; the
private ones are their bodies, for one item.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.kernels.numeric import exp, fused, narrow, widen
from backends.kernels.sides import Side, store
from backends.kernels.team import deal, jit
from backends.kernels.vectors import dot

Array = NDArray[Any]

UNROTATED = -1  # for `angles`

_ONE = np.float32(1)
_GELU_SCALE, _GELU_CUBE = np.float32((8 / np.pi) ** 0.5), np.float32(0.044715)


@jit
def add_norm(residual: Array, update: Array, weight: Array, eps: Any, out: Array) -> None:
    deal(_add_norm, len(residual), (residual, update, weight, eps, out))


@jit
def _add_norm(row: int, residual: Array, update: Array, weight: Array, eps: Any, out: Array) -> None:
    width = residual.shape[1]
    own = residual[row]
    for i in range(width):
        own[i] += widen(update[row, i])
    inverse = _ONE / np.sqrt(dot(own, own) / np.float32(width) + eps)
    for i in range(width):
        out[row, i] = narrow(own[i] * inverse * weight[i], out[row, i])


@jit
def silu_mul(gate_up: Array, out: Array) -> None:
    deal(_silu_mul, len(out), (gate_up, out))


@jit
def _silu_mul(row: int, gate_up: Array, out: Array) -> None:
    width = out.shape[1]
    for i in range(width):
        gate, up = widen(gate_up[row, i]), widen(gate_up[row, width + i])
        out[row, i] = narrow(gate / (_ONE + exp(-gate)) * up, out[row, i])


@jit
def gelu_mul(gate_up: Array, out: Array) -> None:
    deal(_gelu_mul, len(out), (gate_up, out))


@jit
def _gelu_mul(row: int, gate_up: Array, out: Array) -> None:
    width = out.shape[1]
    for i in range(width):
        gate, up = widen(gate_up[row, i]), widen(gate_up[row, width + i])
        inner = _GELU_SCALE * gate * fused(_GELU_CUBE * gate, gate, _ONE)
        # x / 2 · (1 + tanh(y)) = x / (1 + exp(-2 y))
        out[row, i] = narrow(gate / (_ONE + exp(-inner)) * up, out[row, i])


@jit
def rotate_store(
    layer: int,
    size: int,
    angles: int,
    qkv: Array,
    cos: Array,
    sin: Array,
    keys: Side,
    values: Side,
    positions: Array,
    turns: Array,
    rows: Array,
    tables: Array,
) -> None:
    """Rotate the queries in `qkv` in place, and store keys and values.

    `size`: of a head; `angles`: see `layout.LayerRule`; `turns`: Layout.angles.
    """
    deal(
        _rotate_store,
        len(qkv),
        (layer, size, angles, qkv, cos, sin, keys, values, positions, turns, rows, tables),
    )


@jit
def _rotate_store(
    token: int,
    layer: int,
    size: int,
    angles: int,
    qkv: Array,
    cos: Array,
    sin: Array,
    keys: Side,
    values: Side,
    positions: Array,
    turns: Array,
    rows: Array,
    tables: Array,
) -> None:
    block_size, kv_heads = keys[0].shape[2:4]
    position = positions[token]
    block = tables[rows[token], position // block_size]
    offset = position % block_size
    heads = qkv.shape[1] // size - 2 * kv_heads
    if angles != UNROTATED:
        for head in range(heads + kv_heads):
            _rotate(qkv, token, head * size, cos, sin, angles + turns[token])
    for head in range(kv_heads):
        key, value = (heads + head) * size, (heads + kv_heads + head) * size
        store(qkv[token, key : key + size], keys, layer, block, offset, head)
        store(qkv[token, value : value + size], values, layer, block, offset, head)


@jit
def _rotate(qkv: Array, token: int, at: int, cos: Array, sin: Array, angle: int) -> None:
    half = cos.shape[1]
    # Slices, since an index that might be negative keeps a loop from vectorising.
    lower, upper = qkv[token, at : at + half], qkv[token, at + half : at + 2 * half]
    cosines, sines = cos[angle], sin[angle]
    for i in range(half):
        first, second, c, s = widen(lower[i]), widen(upper[i]), cosines[i], sines[i]
        lower[i] = narrow(fused(first, c, -second * s), lower[i])
        upper[i] = narrow(fused(second, c, first * s), upper[i])

"""The draw of `noise` as one loop per row, which leaves out what cannot win."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from backends.kernels.noise import BITS, GOLDEN, LAST_SHIFT, MIX
from backends.kernels.team import deal, jit

_GOLDEN = np.uint64(GOLDEN)
(_SHIFT_1, _FACTOR_1), (_SHIFT_2, _FACTOR_2) = (
    (np.uint64(shift), np.uint64(factor)) for shift, factor in MIX
)
_SHIFT_3, _DROPPED = np.uint64(LAST_SHIFT), np.uint64(64 - BITS)
_HIGHEST = np.uint64(2**BITS - 1)
_LN2, _STEP = np.log(2.0), 2.0**-BITS


@jit
def draw(scores: NDArray[np.float32], keys: NDArray[np.uint64], out: NDArray[np.int64]) -> None:
    """out[row] = argmax(scores[row] + gumbel(keys[row])), for scores [rows, vocabulary]."""
    deal(_draw, len(out), (scores, keys, out))


@jit
def _draw(row: int, scores: NDArray[np.float32], keys: NDArray[np.uint64], out: NDArray[np.int64]) -> None:
    first = int(np.argmax(scores[row]))
    best, value = first, scores[row, first] + _gumbel(_bits(keys[row], first))
    for token in range(scores.shape[1]):
        bits = _bits(keys[row], token)
        # The noise, -log(-log u), is at most -log(1 - u), and that at most ln 2 for each leading zero of 1 - u
        # and one more. Two logarithms per token would take longer than the rest of a step.
        bound = _LN2 * (_leading_zeros(_HIGHEST - bits) - 11)
        if scores[row, token] + bound > value:
            candidate = scores[row, token] + _gumbel(bits)
            if candidate > value:
                best, value = token, candidate
    out[row] = best


@jit
def _bits(key: Any, token: int) -> Any:
    x = key + np.uint64(token + 1) * _GOLDEN
    x = (x ^ (x >> _SHIFT_1)) * _FACTOR_1
    x = (x ^ (x >> _SHIFT_2)) * _FACTOR_2
    return (x ^ (x >> _SHIFT_3)) >> _DROPPED


@jit
def _gumbel(bits: Any) -> Any:
    return -np.log(-np.log((np.float64(bits) + 0.5) * _STEP))


@intrinsic  # type: ignore[untyped-decorator]
def _leading_zeros(context: Any, value: Any) -> Any:
    """Of an unsigned 64-bit number; 64 for 0."""

    def lower(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.ctlz(values[0], ir.IntType(1)(0))

    return types.int64(types.uint64), lower

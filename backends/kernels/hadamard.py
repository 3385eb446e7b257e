"""The Walsh-Hadamard transform of up to 64 columns with one another: orthogonal, and its own inverse.

What one loud column would take from the precision of all others it spreads over many (arXiv:2404.00456). Which columns
are mixed is free, as long as activations and weights agree on it.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from backends.kernels.team import jit

Array = NDArray[Any]

_MOST = 64  # columns that are mixed with one another
_EIGHT = 8
_ONE, _EIGHTH = np.float32(1), np.float32(1 / 8)
_LANES = 16
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)


@jit
def mix(values: Array) -> None:
    """float32 [columns], in place: each with the others of its 64, or of the largest power of two that divides."""
    if len(values) % _MOST:
        _mix_runs(values)
    else:
        _mix_eighths(values)
        _mix_neighbours(values)


@jit
def _mix_eighths(values: Array) -> None:
    """The first column of each eighth of the row with the first ones of the others, and so on, an eighth of them."""
    run = len(values) // _EIGHT
    a, b, c, d = values[:run], values[run : 2 * run], values[2 * run : 3 * run], values[3 * run : 4 * run]
    e, f, g, h = (
        values[4 * run : 5 * run],
        values[5 * run : 6 * run],
        values[6 * run : 7 * run],
        values[7 * run :],
    )
    for i in range(run):
        a0, a1, b0, b1 = a[i] + b[i], a[i] - b[i], c[i] + d[i], c[i] - d[i]
        c0, c1, d0, d1 = e[i] + f[i], e[i] - f[i], g[i] + h[i], g[i] - h[i]
        a0, b0, a1, b1 = a0 + b0, a0 - b0, a1 + b1, a1 - b1
        c0, d0, c1, d1 = c0 + d0, c0 - d0, c1 + d1, c1 - d1
        a[i], e[i] = (a0 + c0) * _EIGHTH, (a0 - c0) * _EIGHTH
        b[i], f[i] = (a1 + c1) * _EIGHTH, (a1 - c1) * _EIGHTH
        c[i], g[i] = (b0 + d0) * _EIGHTH, (b0 - d0) * _EIGHTH
        d[i], h[i] = (b1 + d1) * _EIGHTH, (b1 - d1) * _EIGHTH


@intrinsic  # type: ignore[untyped-decorator]
def _mix_neighbours(_: Any, values: Any) -> Any:
    """Each eight columns that lie together with one another, in registers of twice as many."""

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        count = builder.udiv(builder.extract_value(array.shape, 0), _I64(_LANES))
        with cgutils.for_range(builder, count) as loop:
            at = builder.gep(array.data, [builder.mul(loop.index, _I64(_LANES))])
            place = builder.bitcast(at, _FLOATS.as_pointer())
            mixed = builder.load(place, align=4)
            for apart in (1, 2, 4):
                mixed = _mix_pairs(builder, mixed, apart)
            builder.store(mixed, place, align=4)
        return context.get_dummy_value()

    return types.void(values), lower


def _mix_pairs(builder: Any, register: Any, apart: int) -> Any:
    """Of two lanes so far apart, the sum and the difference in their places."""
    others = ir.Constant(ir.VectorType(_I32, _LANES), [lane ^ apart for lane in range(_LANES)])
    signs = _FLOATS([-1.0 if lane & apart else 1.0 for lane in range(_LANES)])
    other = builder.shuffle_vector(register, register, others)
    return builder.fadd(builder.fmul(register, signs), other)


@jit
def _mix_runs(values: Array) -> None:
    """Columns that are a part of the row apart: runs of neighbours, not single values, are added and subtracted."""
    columns = len(values)
    mixed = 1
    while mixed < _MOST and columns % (2 * mixed) == 0:
        mixed *= 2
    run, norm = columns // mixed, _ONE / np.sqrt(np.float32(mixed))
    for i in range(columns):
        values[i] *= norm
    while run < columns:
        for start in range(0, columns, 2 * run):
            left, right = values[start : start + run], values[start + run : start + 2 * run]
            for i in range(run):
                left[i], right[i] = left[i] + right[i], left[i] - right[i]
        run *= 2

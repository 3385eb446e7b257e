"""Numbers inside numba kernels: bfloat16, which numba does not know, and an exponential that vectorises.

A bfloat16 array travels as int16: the upper half of a float32's bits. `widen` and `narrow` leave float32 alone and take
int8 for whole numbers, so that one kernel serves all types.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from backends.kernels.team import jit

_I8, _I16, _I32, _F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()

_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)  # beyond, the result is no normal number
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # exact in few bits, so that n * _LN2_HIGH is exact
_LN2_LOW = np.float32(-2.12194440e-4)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)
# exp(r) = 1 + r + r² · P(r) on |r| ≤ ln(2) / 2: the minimax polynomial of Cephes' expf (Moshier, public)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


@intrinsic  # type: ignore[untyped-decorator]
def widen(context: Any, value: Any) -> Any:
    """float32 of a float32, of a bfloat16 that came as int16, or of an int8."""

    def lower(_: Any, builder: Any, __: Any, values: Any) -> Any:
        if value == types.float32:
            return values[0]
        if value == types.int8:
            return builder.sitofp(values[0], _F32)
        return builder.bitcast(builder.shl(builder.zext(values[0], _I32), _I32(16)), _F32)

    return types.float32(value), lower


@intrinsic  # type: ignore[untyped-decorator]
def narrow(context: Any, value: Any, like: Any) -> Any:
    """`value` in the type of `like`: float32, int16 for bfloat16, or int8, rounded to nearest even."""

    def lower(_: Any, builder: Any, __: Any, values: Any) -> Any:
        if like == types.float32:
            return values[0]
        if like == types.int8:
            type = ir.FunctionType(_F32, [_F32])
            near = cgutils.get_or_insert_function(builder.module, type, "llvm.rint.f32")
            return builder.fptosi(builder.call(near, [values[0]]), _I8)
        bits = builder.bitcast(values[0], _I32)
        odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
        rounded = builder.add(bits, builder.add(odd, _I32(0x7FFF)))
        return builder.trunc(builder.lshr(rounded, _I32(16)), _I16)

    return like(types.float32, like), lower


@intrinsic  # type: ignore[untyped-decorator]
def _float_of_bits(context: Any, bits: Any) -> Any:
    def lower(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.bitcast(values[0], _F32)

    return types.float32(types.int32), lower


@intrinsic  # type: ignore[untyped-decorator]
def fused(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c of float32, rounded once where the CPU can: the same wherever it is compiled into."""

    def lower(_: Any, builder: Any, __: Any, values: Any) -> Any:
        type = ir.FunctionType(_F32, [_F32] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, type, "llvm.fmuladd.f32"), values)

    return types.float32(types.float32, types.float32, types.float32), lower


@jit
def exp(x: Any) -> Any:
    """exp(x) in float32, relative error below 2.4e-7; below -87 and above 88 as there. NaN stays NaN."""
    x = _LOWEST if x < _LOWEST else x
    x = _HIGHEST if x > _HIGHEST else x
    n = np.floor(fused(x, _LOG2_E, _HALF))
    r = fused(n, -_LN2_LOW, fused(n, -_LN2_HIGH, x))
    tail = fused(fused(fused(fused(fused(_P0, r, _P1), r, _P2), r, _P3), r, _P4), r, _P5)
    return (fused(tail, r * r, r) + _ONE) * _float_of_bits((np.int32(n) + np.int32(127)) << np.int32(23))

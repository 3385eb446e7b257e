"""Numbers of eight bits and back in Triton, by arithmetic that every GPU has, and the interpreter too.

Conversions of float8 are instructions from sm89 on alone, and the interpreter has them round in another way.
"""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def to_int8(x: tl.tensor) -> tl.tensor:
    """float32 to the nearest, ties to even; at most 127 either way."""
    x = tl.minimum(tl.maximum(x, -127.0), 127.0)
    return ((x + 12582912.0) - 12582912.0).to(tl.int8)  # 1.5 · 2**23: its last bit counts ones


@triton.jit  # type: ignore[untyped-decorator]
def to_float8(x: tl.tensor) -> tl.tensor:
    """float32 to the bytes of float8 e4m3, to the nearest, ties to even; at most 448 either way."""
    size = tl.minimum(tl.abs(x), 448.0)
    bits = size.to(tl.int32, bitcast=True)
    # Three bits of mantissa, and a bias of 7 for 127; below the least exponent, multiples of 2**-9.
    usual = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    small = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (tl.where(size < 0.015625, small, usual) | sign).to(tl.uint8)


@triton.jit  # type: ignore[untyped-decorator]
def from_float8(bytes: tl.tensor) -> tl.tensor:
    """The bytes of float8 e4m3 as float16, exactly. Its exponent counts from 7, float16's from 15: a factor of 2^8."""
    bits = bytes.to(tl.uint16)
    return (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0

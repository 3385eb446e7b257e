"""Products of small integers on CPUs with VNNI: int8 weights, int8 activations, exact int32 sums.

`vpdpbusd` adds four products of an unsigned and a signed byte to each of sixteen int32 lanes. It is reached
through LLVM's intrinsic of that name, so that nothing but numba is needed. Activations travel as unsigned bytes,
128 above their value; what that adds, 128 · Σ weights of the channel, is subtracted at the end.

Before it is rounded, a row is rotated by an orthogonal matrix, and so are the weights, see `hadamard`: the product
stays what it is.

Packed weights int8 [channels / 64, columns / 4, 64, 4]: four columns of 64 channels lie together, four registers.
"""

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from backends.kernels.hadamard import mix
from backends.kernels.numeric import narrow, widen
from backends.kernels.team import deal, jit

Array = NDArray[Any]

WIDE, QUAD = 64, 4  # channels of an item of work, columns of a product
CENTRE = 128  # what an activation of zero is as an unsigned byte
MAX_COLUMNS = 2**31 // (255 * 128)  # more could overflow a sum

_LANES, _TALL = 16, 4  # channels of a register, rows of a large tile
_PANEL = 128  # rows of an item of work
_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_SUMS, _BYTES = ir.VectorType(_I32, _LANES), ir.VectorType(_I8, _LANES * QUAD)
_ZERO, _LARGEST = np.float32(0), np.float32(127)
_INFINITE = np.int32(0x7F800000)  # the bits of infinity; those of NaN are above
_NOTHING = np.float32(1e-30)  # below it the inverse of a scale leaves float32
_NAN = np.float32(np.nan)


def cpu_has(feature: str) -> bool:
    """`avx512vnni`: the 512-bit `vpdpbusd`; `avx2`: what `backends.kernels.int8_avx2` is made of."""
    return bool(binding.get_host_cpu_features().get(feature))


@jit
def quantize(x: Array, centre: int, out: Array, scales: Array) -> None:
    """Rows of float32 or bfloat16 [rows, columns], rotated → integers within ±127 of `centre`, as `out` has them, and
    each row's float32 scale.

    A row with NaN or infinity gets the scale NaN; the columns of `out` beyond those of `x` get `centre`.
    """
    deal(_quantize, len(x), (x, centre, out, scales))


@jit
def _quantize(row: int, x: Array, centre: int, out: Array, scales: Array) -> None:
    columns = x.shape[1]
    rotated = np.empty(columns, np.float32)
    for i in range(columns):
        rotated[i] = widen(x[row, i])
    mix(rotated)
    bits = _largest(rotated)
    top = _float(bits)
    out[row, :] = centre
    if bits >= _INFINITE:
        scales[row] = _NAN
    elif top < _NOTHING:
        scales[row] = _ZERO
    else:
        scales[row] = top / _LARGEST
        inverse = _LARGEST / top
        for i in range(columns):
            out[row, i] = np.int32(np.rint(rotated[i] * inverse)) + np.int32(centre)


@jit
def quantize_weights(x: Array, out: Array, scales: Array) -> None:
    """Rows of float32 [rows, columns] → int8 within ±127 and each row's scale. `x` is rotated in place.

    As `quantize`, but for how it rounds: to the nearest multiple of the scale, whatever that costs. A row with NaN or
    infinity gets a scale that is not finite.
    """
    deal(_quantize_weights, len(x), (x, out, scales))


@jit
def _quantize_weights(row: int, x: Array, out: Array, scales: Array) -> None:
    rotated = x[row]
    mix(rotated)
    top = _float(_largest(rotated))
    scale = max(top, _NOTHING) / _LARGEST
    scales[row] = scale if np.isfinite(top) else top
    for i in range(len(rotated)):
        out[row, i] = np.int8(np.rint(rotated[i] / scale))


@jit
def _largest(values: Array) -> np.int32:
    """The bits of the largest float without its sign: as integers these are in their order, NaN on top."""
    bits = np.int32(0)
    for i in range(len(values)):
        bits = max(bits, _bits(values[i]) & np.int32(0x7FFFFFFF))
    return bits


@jit
def multiply(
    x: Array, scales: Array, weight: Array, offsets: Array, channel: Array, bias: Array, out: Array
) -> None:
    """out [rows, channels] = (x · weightᵀ − offsets) · scales · channel + bias, rounded to the type of `out`.

    `x` uint8 [rows, columns of the packed weight], `weight` packed, `offsets` int32 (CENTRE times the sum of a
    channel's weights), `channel` float32 scales and `bias` float32 [channels].
    """
    panels = -(-len(x) // _PANEL)
    deal(_multiply, panels * len(weight), (x, scales, weight, offsets, channel, bias, out))


@jit
def _multiply(
    item: int, x: Array, scales: Array, weight: Array, offsets: Array, channel: Array, bias: Array, out: Array
) -> None:
    """One panel of rows and one part of the channels. Panel by panel, so that most rows are of one thread: the one that
    has them in loops over rows."""
    begin, part = item // len(weight) * _PANEL, item % len(weight)
    end, first = min(begin + _PANEL, len(x)), part * WIDE
    sums = np.empty((_TALL, WIDE), np.int32)
    tall = end - (end - begin) % _TALL
    for row in range(begin, tall, _TALL):
        _tall_tile(x, row, weight, part, sums)
        for r in range(_TALL):
            finish_tile(row + r, sums, r, first, scales, offsets, channel, bias, out)
    for row in range(tall, end):
        _flat_tile(x, row, weight, part, sums)
        finish_tile(row, sums, 0, first, scales, offsets, channel, bias, out)


@jit
def finish(sums: Array, scales: Array, offsets: Array, channel: Array, bias: Array, out: Array) -> None:
    """As `multiply`, from sums [rows, channels] that another product has found."""
    deal(_finish_row, len(sums), (sums, scales, offsets, channel, bias, out))


@jit
def _finish_row(
    row: int, sums: Array, scales: Array, offsets: Array, channel: Array, bias: Array, out: Array
) -> None:
    finish_tile(row, sums, row, 0, scales, offsets, channel, bias, out)


@jit
def finish_tile(
    row: int,
    sums: Array,
    at: int,
    first: int,
    scales: Array,
    offsets: Array,
    channel: Array,
    bias: Array,
    out: Array,
) -> None:
    """sums[at], which begins with channel `first` and may go beyond the last one, into row `row` of `out`."""
    scale, end = scales[row], min(first + sums.shape[1], out.shape[1])
    # Slices, since an index that might be negative keeps a loop from vectorising.
    own, added, offset, factor = sums[at], bias[first:end], offsets[first:end], channel[first:end]
    target = out[row, first:end]
    for i in range(len(target)):
        value = np.float32(own[i] - offset[i]) * (scale * factor[i]) + added[i]
        target[i] = narrow(value, target[i])


def _tile(rows: int) -> Any:
    """An intrinsic tile(x, row, weight, item, sums): sums[:rows, :WIDE] = x[row : row + rows] · weight[item]ᵀ.

    All sums stay in registers over a loop that reads the packed weights once, from first to last.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(_: Any, x: Any, row: Any, weight: Any, item: Any, sums: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            arrays = [
                context.make_array(signature.args[place])(context, builder, values[place])
                for place in (0, 2, 4)
            ]
            quads = builder.extract_value(arrays[1].shape, 1)
            width = builder.mul(quads, _I64(QUAD))
            starts = [
                builder.gep(arrays[0].data, [builder.mul(builder.add(values[1], _I64(r)), width)])
                for r in range(rows)
            ]
            weights = builder.gep(arrays[1].data, [builder.mul(values[3], builder.mul(width, _I64(WIDE)))])
            results = _dot_loop(builder, quads, starts, weights)
            for place, result in enumerate(results):
                target = builder.gep(arrays[2].data, [_I64(place * _LANES)])
                builder.store(result, builder.bitcast(target, _SUMS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(x, row, weight, item, sums), lower

    return tile


def _dot_loop(builder: Any, quads: Any, rows: list[Any], weights: Any) -> list[Any]:
    """The sums, sixteen channels each, row by row, after a loop over `quads` groups of four columns."""
    before, body = builder.block, builder.append_basic_block("quad")
    after = builder.append_basic_block("summed")
    builder.branch(body)
    builder.position_at_end(body)
    quad = builder.phi(_I64)
    sums = [builder.phi(_SUMS) for _ in range(len(rows) * (WIDE // _LANES))]
    at = builder.gep(weights, [builder.mul(quad, _I64(WIDE * QUAD))])
    registers = [_load(builder, at, place * _LANES * QUAD, _BYTES) for place in range(WIDE // _LANES)]
    offset = builder.mul(quad, _I64(QUAD))
    spread = [_spread(builder, _load(builder, builder.gep(row, [offset]), 0, _I32)) for row in rows]
    results = [
        _dot(builder, total, spread[place // len(registers)], registers[place % len(registers)])
        for place, total in enumerate(sums)
    ]
    following = builder.add(quad, _I64(1))
    for phi, start, value in zip(
        [quad, *sums], [_I64(0), *[_SUMS([0] * _LANES)] * len(sums)], [following, *results], strict=True
    ):
        phi.add_incoming(start, before)
        phi.add_incoming(value, body)
    builder.cbranch(builder.icmp_signed("<", following, quads), body, after)
    builder.position_at_end(after)
    return results


def _load(builder: Any, base: Any, offset: int, type: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(base, [_I64(offset)]), type.as_pointer()), align=1)


def _spread(builder: Any, four: Any) -> Any:
    """Four bytes as an int32, sixteen times over."""
    one = builder.insert_element(ir.Constant(_SUMS, ir.Undefined), four, _I32(0))
    mask = ir.Constant(_SUMS, [0] * _LANES)
    return builder.bitcast(builder.shuffle_vector(one, ir.Constant(_SUMS, ir.Undefined), mask), _BYTES)


def _dot(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    name = "llvm.x86.avx512.vpdpbusd.512"
    type = ir.FunctionType(_SUMS, [_SUMS, _BYTES, _BYTES])
    return builder.call(cgutils.get_or_insert_function(builder.module, type, name), [total, unsigned, signed])


_tall_tile, _flat_tile = _tile(_TALL), _tile(1)


@intrinsic  # type: ignore[untyped-decorator]
def _bits(context: Any, value: Any) -> Any:
    def lower(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.bitcast(values[0], _I32)

    return types.int32(types.float32), lower


@intrinsic  # type: ignore[untyped-decorator]
def _float(context: Any, bits: Any) -> Any:
    def lower(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.FloatType())

    return types.float32(types.int32), lower

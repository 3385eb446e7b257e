"""Products of 4-bit weights in groups of 32 columns, on CPUs with AVX2.

A weight is `integer · scale + minimum`, with a scale and a minimum for each group of a channel. Activations become
int8 with a scale for each group of a row. In a group the integers are multiplied exactly: `vpmaddubsw` adds two
products in 16 bits, and eight of these sums stay below 8 · 2 · 15 · 127 = 30,480. What the minimum adds is itself
times the sum of the group's activations. Groups are added up in float32, in order, by fused operations, so that a
row's result depends on nothing but the row.

Packed weights uint8 [channels / 8, groups, 4, 8, 4]: of a byte the low half belongs to the columns 8k … 8k + 3 of the
group, the high half to 8k + 4 … 8k + 7. Scales and minima [channels / 8, groups, 8] in float16 (as uint16) or float32.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from backends.kernels.numeric import narrow, widen
from backends.kernels.team import deal, jit

Array = NDArray[Any]

GROUP, LANES = 32, 8  # columns of a group, channels of a register of sums
WIDE = 32  # channels of an item of work

_TALL = 4  # rows of a large tile
_LOADS, _QUAD = 4, 4  # registers of a group's weights, columns that lie together
_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F16, _F32 = ir.HalfType(), ir.FloatType()
_BYTES, _SHORTS, _INTS = ir.VectorType(_I8, 32), ir.VectorType(_I16, 16), ir.VectorType(_I32, LANES)
_FLOATS, _HALVES = ir.VectorType(_F32, LANES), ir.VectorType(_F16, LANES)
_ZERO, _LARGEST, _NAN = np.float32(0), np.float32(127), np.float32(np.nan)
_NOTHING = np.float32(1e-30)  # below it the inverse of a scale leaves float32
_MOST = np.float32(3.4028235e38)


@jit
def quantize(x: Array, out: Array, scales: Array, sums: Array) -> None:
    """Rows of float32 or bfloat16 [rows, columns] → int8 `out` within ±127; for each group of a row its float32 scale,
    and the sum of what it stands for. [rows, groups]

    A group with NaN or infinity gets the scale NaN.
    """
    deal(_quantize, len(x), (x, out, scales, sums))


@jit
def _quantize(row: int, x: Array, out: Array, scales: Array, sums: Array) -> None:
    values = np.empty(GROUP, np.float32)
    for group in range(scales.shape[1]):
        first = group * GROUP
        top, finite = _ZERO, True
        for i in range(GROUP):
            values[i] = widen(x[row, first + i])
            size = abs(values[i])
            finite = finite and size <= _MOST
            top = max(top, size)
        scale = top / _LARGEST if top >= _NOTHING else _ZERO
        inverse = _LARGEST / top if top >= _NOTHING else _ZERO
        total = np.int32(0)
        for i in range(GROUP):
            integer = np.int32(np.rint(values[i] * inverse)) if finite else np.int32(0)
            out[row, first + i] = integer
            total += integer
        scales[row, group] = scale if finite else _NAN
        sums[row, group] = np.float32(total)


@jit
def multiply(
    x: Array,
    factors: Array,
    sums: Array,
    weight: Array,
    scales: Array,
    minima: Array,
    bias: Array,
    out: Array,
) -> None:
    """out [rows, channels] = x · weightᵀ + bias, rounded to the type of `out`.

    `x`, `factors` and `sums` come from `quantize`; `weight`, `scales` and `minima` are packed, their channels filled
    up to whole items of work; `bias` float32 [channels].
    """
    deal(_multiply, len(weight) * LANES // WIDE, (x, factors, sums, weight, scales, minima, bias, out))


@jit
def _multiply(
    item: int, x: Array, factors: Array, sums: Array, weight: Array, scales: Array, minima: Array, bias: Array,
    out: Array,
) -> None:  # fmt: skip
    rows, results = len(x), np.empty((_TALL, LANES), np.float32)
    tall = rows // _TALL * _TALL
    for block in range(item * (WIDE // LANES), (item + 1) * (WIDE // LANES)):
        if block * LANES >= out.shape[1]:
            break
        for row in range(0, tall, _TALL):
            _tall_tile(x, row, factors, sums, weight, block, scales, minima, results)
            for r in range(_TALL):
                _finish(results, r, block, bias, out, row + r)
        for row in range(tall, rows):
            _flat_tile(x, row, factors, sums, weight, block, scales, minima, results)
            _finish(results, 0, block, bias, out, row)


@jit
def _finish(results: Array, at: int, block: int, bias: Array, out: Array, row: int) -> None:
    first = block * LANES
    for i in range(min(LANES, out.shape[1] - first)):
        out[row, first + i] = narrow(results[at, i] + bias[first + i], out[row, first + i])


def _tile(rows: int) -> Any:
    """An intrinsic tile(x, row, factors, sums, weight, block, scales, minima, results): results[:rows] are the
    products of rows `row` and on with the eight channels of `block`."""

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(
        _: Any, x: Any, row: Any, factors: Any, sums: Any, weight: Any, block: Any, scales: Any, minima: Any,
        results: Any,
    ) -> Any:  # fmt: skip
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x, factors, sums, weight, scales, minima, results = (
                context.make_array(signature.args[place])(context, builder, values[place])
                for place in (0, 2, 3, 4, 6, 7, 8)
            )
            groups = builder.extract_value(weight.shape, 1)

            def line(array: Any, index: Any, width: int) -> Any:
                """Where line `index` begins, of `groups` times `width` elements."""
                return builder.gep(array.data, [builder.mul(index, builder.mul(groups, _I64(width)))])

            each = [builder.add(values[1], _I64(r)) for r in range(rows)]
            lines = [(line(x, r, GROUP), line(factors, r, 1), line(sums, r, 1)) for r in each]
            packed = line(weight, values[5], LANES * GROUP // 2)
            tables = line(scales, values[5], LANES), line(minima, values[5], LANES)
            for place, total in enumerate(_group_loop(builder, groups, lines, packed, tables)):
                target = builder.gep(results.data, [_I64(place * LANES)])
                builder.store(total, builder.bitcast(target, _FLOATS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(x, row, factors, sums, weight, block, scales, minima, results), lower

    return tile


def _group_loop(
    builder: Any, groups: Any, rows: list[Any], packed: Any, tables: tuple[Any, Any]
) -> list[Any]:
    """The sums of each row, eight channels, after a loop over the groups."""
    before, body = builder.block, builder.append_basic_block("group")
    after = builder.append_basic_block("summed")
    builder.branch(body)
    builder.position_at_end(body)
    group = builder.phi(_I64)
    totals = [builder.phi(_FLOATS) for _ in rows]
    at = builder.gep(packed, [builder.mul(group, _I64(LANES * GROUP // 2))])
    scale, minimum = (
        _eight_floats(builder, builder.gep(table, [builder.mul(group, _I64(LANES))])) for table in tables
    )
    products = _integer_products(builder, group, at, [row[0] for row in rows])
    results = []
    for (_, factors, sums), product, total in zip(rows, products, totals, strict=True):
        factor, sum = (_spread_float(builder, builder.gep(each, [group])) for each in (factors, sums))
        value = _fma(builder, builder.sitofp(product, _FLOATS), scale, builder.fmul(minimum, sum))
        results.append(_fma(builder, value, factor, total))
    following = builder.add(group, _I64(1))
    for phi, start, value in zip(
        [group, *totals], [_I64(0), *[_FLOATS([0.0] * LANES)] * len(rows)], [following, *results], strict=True
    ):
        phi.add_incoming(start, before)
        phi.add_incoming(value, body)
    builder.cbranch(builder.icmp_signed("<", following, groups), body, after)
    builder.position_at_end(after)
    return results


def _integer_products(builder: Any, group: Any, packed: Any, rows: list[Any]) -> list[Any]:
    """Of one group, for each row: int32, eight channels."""
    shorts = [_SHORTS([0] * 16)] * len(rows)
    column = builder.mul(group, _I64(GROUP))
    low_half, four = _SHORTS([0x0F0F] * 16), _SHORTS([4] * 16)
    for load in range(_LOADS):
        both = _load(builder, packed, load * LANES * _QUAD, _SHORTS)
        for half in range(2):
            shifted = builder.lshr(both, four) if half else both
            weights = builder.bitcast(builder.and_(shifted, low_half), _BYTES)
            offset = (2 * load + half) * _QUAD
            for place, row in enumerate(rows):
                activations = _spread_quad(builder, builder.gep(row, [builder.add(column, _I64(offset))]))
                product = _call(builder, "llvm.x86.avx2.pmadd.ub.sw", _SHORTS, [weights, activations])
                shorts[place] = builder.add(shorts[place], product)
    ones = _SHORTS([1] * 16)
    return [_call(builder, "llvm.x86.avx2.pmadd.wd", _INTS, [each, ones]) for each in shorts]


def _load(builder: Any, base: Any, offset: int, type: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(base, [_I64(offset)]), type.as_pointer()), align=1)


def _eight_floats(builder: Any, at: Any) -> Any:
    """Of float32, or of float16 that came as uint16."""
    if at.type.pointee == _F32:
        return _load(builder, at, 0, _FLOATS)
    return builder.fpext(_load(builder, at, 0, _HALVES), _FLOATS)


def _spread_quad(builder: Any, at: Any) -> Any:
    """Four activations, eight times over."""
    four = builder.load(builder.bitcast(at, _I32.as_pointer()), align=1)
    return builder.bitcast(_spread(builder, four, _INTS), _BYTES)


def _spread_float(builder: Any, at: Any) -> Any:
    return _spread(builder, builder.load(at), _FLOATS)


def _spread(builder: Any, value: Any, type: Any) -> Any:
    none = ir.Constant(type, ir.Undefined)
    one = builder.insert_element(none, value, _I32(0))
    return builder.shuffle_vector(one, none, ir.Constant(_INTS, [0] * LANES))


def _fma(builder: Any, left: Any, right: Any, added: Any) -> Any:
    return _call(builder, "llvm.fma.v8f32", _FLOATS, [left, right, added])


def _call(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    type = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, type, name), arguments)


_tall_tile, _flat_tile = _tile(_TALL), _tile(1)

"""Products of small integers on CPUs with AVX2 alone: int8 weights, int8 activations, exact int32 sums.

`vpmaddwd` multiplies sixteen pairs of 16-bit integers and adds two neighbours, which no product of bytes can overflow;
the instruction that takes bytes saturates. Weights are widened on the way from memory, where they are as small as
ever, so that a single row goes at the speed of the memory; activations travel widened.

Packed weights int8 [channels / 16, columns / 2, 16, 2], the channels filled up to whole items of work.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from backends.kernels.int8 import finish_tile
from backends.kernels.team import deal, jit

Array = NDArray[Any]

NARROW, PAIR = 16, 2  # channels of a block, columns of a product

_LANES, _TALL = 8, 4  # channels of a register of sums, rows of a large tile
_REGISTERS = NARROW // _LANES
_PER_ITEM = 2  # blocks of an item of work
_WIDE = _PER_ITEM * NARROW
_PANEL = 128  # rows of one
_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_SUMS, _SHORTS = ir.VectorType(_I32, _LANES), ir.VectorType(_I16, _LANES * PAIR)
_BYTES = ir.VectorType(_I8, _LANES * PAIR)


@jit
def multiply(
    x: Array, scales: Array, weight: Array, offsets: Array, channel: Array, bias: Array, out: Array
) -> None:
    """As `int8.multiply`, for `x` int16 [rows, columns of the packed weight] around zero, so that `offsets` are 0."""
    parts, panels = -(-out.shape[1] // _WIDE), -(-len(x) // _PANEL)
    deal(_multiply, parts * panels, (panels, x, scales, weight, offsets, channel, bias, out))


@jit
def _multiply(
    item: int, panels: int, x: Array, scales: Array, weight: Array, offsets: Array, channel: Array, bias: Array,
    out: Array,
) -> None:  # fmt: skip
    """Small items, so that no thread has much to do when the others are done."""
    begin, part = item % panels * _PANEL, item // panels
    rows, block, first = min(begin + _PANEL, len(x)), part * _PER_ITEM, part * _WIDE
    sums = np.empty((_TALL, _WIDE), np.int32)
    tall = begin + (rows - begin) // _TALL * _TALL
    for row in range(begin, tall, _TALL):
        for place in range(_PER_ITEM):
            _tall_tile(x, row, weight, block + place, sums, place * NARROW)
        for r in range(_TALL):
            finish_tile(row + r, sums, r, first, scales, offsets, channel, bias, out)
    for row in range(tall, rows):
        for place in range(_PER_ITEM):
            _flat_tile(x, row, weight, block + place, sums, place * NARROW)
        finish_tile(row, sums, 0, first, scales, offsets, channel, bias, out)


def _tile(rows: int) -> Any:
    """An intrinsic tile(x, row, weight, block, sums, left):
    sums[:rows, left : left + NARROW] = x[row : row + rows] · weight[block]ᵀ."""

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(_: Any, x: Any, row: Any, weight: Any, block: Any, sums: Any, left: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            arrays = [
                context.make_array(signature.args[place])(context, builder, values[place])
                for place in (0, 2, 4)
            ]
            pairs = builder.extract_value(arrays[1].shape, 1)
            width = builder.mul(pairs, _I64(PAIR))
            starts = [
                builder.gep(arrays[0].data, [builder.mul(builder.add(values[1], _I64(r)), width)])
                for r in range(rows)
            ]
            weights = builder.gep(arrays[1].data, [builder.mul(values[3], builder.mul(width, _I64(NARROW)))])
            for place, result in enumerate(_dot_loop(builder, pairs, starts, weights)):
                row, register = divmod(place, _REGISTERS)
                at = builder.add(values[5], _I64(row * _WIDE + register * _LANES))
                target = builder.gep(arrays[2].data, [at])
                builder.store(result, builder.bitcast(target, _SUMS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(x, row, weight, block, sums, left), lower

    return tile


def _dot_loop(builder: Any, pairs: Any, rows: list[Any], weights: Any) -> list[Any]:
    """The sums, eight channels each, row by row, after a loop over `pairs` of columns."""
    before, body = builder.block, builder.append_basic_block("pair")
    after = builder.append_basic_block("summed")
    builder.branch(body)
    builder.position_at_end(body)
    pair = builder.phi(_I64)
    sums = [builder.phi(_SUMS) for _ in range(len(rows) * _REGISTERS)]
    at = builder.gep(weights, [builder.mul(pair, _I64(NARROW * PAIR))])
    registers = [_widened(builder, at, place * _LANES * PAIR) for place in range(_REGISTERS)]
    column = builder.mul(pair, _I64(PAIR))
    spread = [_spread(builder, builder.gep(row, [column])) for row in rows]
    results = [
        builder.add(total, _dot(builder, spread[place // _REGISTERS], registers[place % _REGISTERS]))
        for place, total in enumerate(sums)
    ]
    following = builder.add(pair, _I64(1))
    for phi, start, value in zip(
        [pair, *sums], [_I64(0), *[_SUMS([0] * _LANES)] * len(sums)], [following, *results], strict=True
    ):
        phi.add_incoming(start, before)
        phi.add_incoming(value, body)
    builder.cbranch(builder.icmp_signed("<", following, pairs), body, after)
    builder.position_at_end(after)
    return results


def _widened(builder: Any, base: Any, offset: int) -> Any:
    """Sixteen bytes of weights as 16-bit integers."""
    at = builder.bitcast(builder.gep(base, [_I64(offset)]), _BYTES.as_pointer())
    return builder.sext(builder.load(at, align=1), _SHORTS)


def _spread(builder: Any, at: Any) -> Any:
    """Two activations, eight times over."""
    two = builder.load(builder.bitcast(at, _I32.as_pointer()), align=2)
    one = builder.insert_element(ir.Constant(_SUMS, ir.Undefined), two, _I32(0))
    spread = builder.shuffle_vector(one, ir.Constant(_SUMS, ir.Undefined), ir.Constant(_SUMS, [0] * _LANES))
    return builder.bitcast(spread, _SHORTS)


def _dot(builder: Any, left: Any, right: Any) -> Any:
    type = ir.FunctionType(_SUMS, [_SHORTS, _SHORTS])
    function = cgutils.get_or_insert_function(builder.module, type, "llvm.x86.avx2.pmadd.wd")
    return builder.call(function, [left, right])


_tall_tile, _flat_tile = _tile(_TALL), _tile(1)

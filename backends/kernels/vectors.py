"""Products and maxima of small float32 matrices in registers, and sums: what LLVM does not make of plain loops.

Columns are the lanes of a register. The matrices lie row by row. Each element of a product is one chain of fused
additions in the order of `depth`, whatever tile it is computed in.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from backends.kernels.numeric import fused
from backends.kernels.team import jit

Array = NDArray[Any]

STEP, _WIDE = 8, 16  # lanes of a narrow tile, and of a wide one
LANES = 4 * STEP  # sums of a dot product
_TALL = 8 if binding.get_host_cpu_features().get("avx512f") else 4  # rows of a wide one: what registers hold
_I8, _I16, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_ZERO = np.float32(0)


@jit
def multiply(a: Array, row: int, column: int, b: Array, depth: int, c: Array, left: int, rows: int) -> None:
    """c[:rows, left : left + width of b] += a · b[:depth]; element (r, d) of `a` is r · row + d · column from its
    first one. The width of `b` is a multiple of STEP."""
    width = b.shape[1]
    wide, slim = width // _WIDE * _WIDE, rows // STEP * STEP
    for at in range(0, wide, _WIDE):
        _multiply_wide(a, row, column, b, at, depth, c, left + at, rows)
    if wide < width:
        for r in range(0, slim, STEP):
            _slim_tile(a, r * row, row, column, b, wide, depth, c, left + wide, r)
        for r in range(slim, rows):
            _least_tile(a, r * row, row, column, b, wide, depth, c, left + wide, r)


@jit
def _multiply_wide(
    a: Array, row: int, column: int, b: Array, at: int, depth: int, c: Array, left: int, rows: int
) -> None:
    """The columns of `b` from `at` on that a wide tile has."""
    done = 0
    while done + _TALL <= rows:
        _tall_tile(a, done * row, row, column, b, at, depth, c, left, done)
        done += _TALL
    if _TALL > 4 and done + 4 <= rows:
        _four_tile(a, done * row, row, column, b, at, depth, c, left, done)
        done += 4
    if done + 3 == rows:
        _three_tile(a, done * row, row, column, b, at, depth, c, left, done)
    elif done + 2 == rows:
        _two_tile(a, done * row, row, column, b, at, depth, c, left, done)
    elif done + 1 == rows:
        _one_tile(a, done * row, row, column, b, at, depth, c, left, done)


def _product(rows: int, lanes: int) -> Any:
    """An intrinsic for one tile: c[r0 : r0 + rows, left : left + lanes] += a · b[:, place : place + lanes].

    Its sums stay in registers over the loop; an element of `a` is spread over all lanes. `depth` ≥ 1.
    """
    vector = ir.VectorType(_F32, lanes)

    @intrinsic  # type: ignore[untyped-decorator]
    def product(
        _: Any, a: Any, at: Any, row: Any, column: Any, b: Any, place: Any, depth: Any, c: Any, left: Any, r0: Any
    ) -> Any:  # fmt: skip
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            a, at, row, column, b, place, depth, c, left, r0 = _arguments(context, builder, signature, values)
            width, across = (builder.extract_value(each.shape, 1) for each in (b, c))
            targets = [
                builder.gep(c.data, [builder.add(builder.mul(builder.add(r0, _I64(r)), across), left)])
                for r in range(rows)
            ]
            firsts = [builder.gep(a.data, [builder.add(at, builder.mul(row, _I64(r)))]) for r in range(rows)]
            begin = builder.gep(b.data, [place])

            def add(step: Any, totals: list[Any]) -> list[Any]:
                factors = _load(builder, builder.gep(begin, [builder.mul(step, width)]), vector)
                offset = builder.mul(step, column)
                numbers = [builder.load(builder.gep(first, [offset])) for first in firsts]
                return [
                    _fused(builder, _spread(builder, number, vector), factors, total)
                    for number, total in zip(numbers, totals, strict=True)
                ]

            _repeat(builder, depth, targets, vector, add)
            return context.get_dummy_value()

        return types.void(a, at, row, column, b, place, depth, c, left, r0), lower

    return product


@jit
def dot(a: Array, b: Array) -> Any:
    """The sum of a[i] · b[i] for i < len(a). Of every LANES-th product a sum of its own, these added up by halves, and
    then one by one the products that are left."""
    whole, total = len(a) // LANES, _ZERO
    if whole:
        total = _dot_lanes(a, b, whole)
    for i in range(whole * LANES, len(a)):
        total = fused(a[i], b[i], total)
    return total


@intrinsic  # type: ignore[untyped-decorator]
def _dot_lanes(_: Any, a: Any, b: Any, count: Any) -> Any:
    """The sum of a[i] · b[i] for i < `count` · LANES, `count` ≥ 1."""
    vector = ir.VectorType(_F32, STEP)

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        a, b, count = _arguments(context, builder, signature, values)
        parts = [cgutils.alloca_once_value(builder, vector([0.0] * STEP)) for _ in range(LANES // STEP)]

        def add(step: Any, totals: list[Any]) -> list[Any]:
            places = [
                builder.add(builder.mul(step, _I64(LANES)), _I64(part * STEP)) for part in range(len(parts))
            ]
            left, right = (
                [_load(builder, builder.gep(x.data, [at]), vector) for at in places] for x in (a, b)
            )
            return [_fused(builder, *each) for each in zip(left, right, totals, strict=True)]

        _repeat(builder, count, parts, vector, add)
        first, second, third, fourth = (builder.load(part) for part in parts)
        return _halved(builder, builder.fadd(builder.fadd(first, third), builder.fadd(second, fourth)))

    return types.float32(a, b, count), lower


def _halved(builder: Any, vector: Any) -> Any:
    """The sum of its lanes."""
    size = vector.type.count
    while size > 1:
        size //= 2
        halves = [ir.Constant(ir.VectorType(_I32, size), [*range(at, at + size)]) for at in (0, size)]
        vector = builder.fadd(*(builder.shuffle_vector(vector, vector, half) for half in halves))
    return builder.extract_element(vector, _I32(0))


@intrinsic  # type: ignore[untyped-decorator]
def maximum(_: Any, rows: Any, left: Any, count: Any, folded: Any) -> Any:
    """folded[left : left + STEP] = the largest of these columns of the first `count` ≥ 1 rows, and what it has."""
    vector = ir.VectorType(_F32, STEP)

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        rows, left, count, folded = _arguments(context, builder, signature, values)
        width, begin = builder.extract_value(rows.shape, 1), builder.gep(rows.data, [left])

        def add(place: Any, totals: list[Any]) -> list[Any]:
            row = _load(builder, builder.gep(begin, [builder.mul(place, width)]), vector)
            return [builder.select(builder.fcmp_ordered(">", total, row), total, row) for total in totals]

        _repeat(builder, count, [builder.gep(folded.data, [left])], vector, add)
        return context.get_dummy_value()

    return types.void(rows, left, count, folded), lower


@intrinsic  # type: ignore[untyped-decorator]
def turn(_: Any, cache: Any, offsets: Any, first: Any, size: Any, turned: Any, left: Any) -> Any:
    """turned[i, left + j] = element i of what lies `offsets[first + j]` into `cache`, for j < STEP and i < size.

    `cache` float32, bfloat16 as int16, or int8; `offsets` int64 [at least first + STEP]; `size` a multiple of STEP.
    """
    vector = ir.VectorType(_F32, STEP)

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        cache, offsets, first, size, turned, left = _arguments(context, builder, signature, values)
        width = builder.extract_value(turned.shape, 1)
        starts = [
            builder.gep(cache.data, [builder.load(builder.gep(offsets.data, [builder.add(first, _I64(j))]))])
            for j in range(STEP)
        ]

        def step(place: Any, _: list[Any]) -> list[Any]:
            i = builder.mul(place, _I64(STEP))
            rows = [_widened(builder, builder.gep(start, [i]), vector) for start in starts]
            for j, column in enumerate(_transposed(builder, rows)):
                at = builder.add(builder.mul(builder.add(i, _I64(j)), width), left)
                target = builder.bitcast(builder.gep(turned.data, [at]), vector.as_pointer())
                builder.store(column, target, align=4)
            return []

        _repeat(builder, builder.udiv(size, _I64(STEP)), [], vector, step)
        return context.get_dummy_value()

    return types.void(cache, offsets, first, size, turned, left), lower


@intrinsic  # type: ignore[untyped-decorator]
def copy(_: Any, cache: Any, offset: Any, size: Any, rows: Any, row: Any) -> Any:
    """rows[row, i] = element i of what lies `offset` into `cache`, for i < size; as `turn`."""
    vector = ir.VectorType(_F32, STEP)

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        cache, offset, size, rows, row = _arguments(context, builder, signature, values)
        source = builder.gep(cache.data, [offset])
        target = builder.gep(rows.data, [builder.mul(row, builder.extract_value(rows.shape, 1))])

        def step(place: Any, _: list[Any]) -> list[Any]:
            i = builder.mul(place, _I64(STEP))
            numbers = _widened(builder, builder.gep(source, [i]), vector)
            at = builder.bitcast(builder.gep(target, [i]), vector.as_pointer())
            builder.store(numbers, at, align=4)
            return []

        _repeat(builder, builder.udiv(size, _I64(STEP)), [], vector, step)
        return context.get_dummy_value()

    return types.void(cache, offset, size, rows, row), lower


# Of two registers of eight, by what halves them: neighbours, pairs, fours. Indices from 8 on are the second one's.
_HALVINGS = (
    ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]),
    ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]),
    ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]),
)


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Eight registers of eight lanes."""
    masks = [[ir.Constant(ir.VectorType(_I32, STEP), mask) for mask in each] for each in _HALVINGS]
    neighbours = [
        builder.shuffle_vector(rows[j], rows[j + 1], mask) for j in range(0, STEP, 2) for mask in masks[0]
    ]
    pairs = [
        builder.shuffle_vector(neighbours[half + low], neighbours[half + low + 2], mask)
        for half in (0, 4)
        for low in (0, 1)
        for mask in masks[1]
    ]
    return [builder.shuffle_vector(pairs[j], pairs[j + 4], mask) for mask in masks[2] for j in range(4)]


def _widened(builder: Any, at: Any, vector: Any) -> Any:
    """As `numeric.widen`, a register of them."""
    if at.type.pointee == _F32:
        return _load(builder, at, vector)
    if at.type.pointee == _I8:
        codes = ir.VectorType(_I8, vector.count)
        return builder.sitofp(builder.load(builder.bitcast(at, codes.as_pointer()), align=1), vector)
    shorts, words = ir.VectorType(_I16, vector.count), ir.VectorType(_I32, vector.count)
    bits = builder.zext(builder.load(builder.bitcast(at, shorts.as_pointer()), align=2), words)
    return builder.bitcast(builder.shl(bits, words([16] * vector.count)), vector)


def _arguments(context: Any, builder: Any, signature: Any, values: Any) -> list[Any]:
    """Arrays as structures, integers in 64 bits."""
    return [
        context.make_array(type)(context, builder, value)
        if isinstance(type, types.Array)
        else context.cast(builder, value, type, types.int64)
        for type, value in zip(signature.args, values, strict=True)
    ]


def _repeat(
    builder: Any, count: Any, targets: list[Any], vector: Any, step: Callable[[Any, list[Any]], list[Any]]
) -> None:
    """Vectors at `targets` → step(place, vectors) for each place < count; in registers meanwhile."""
    begun = [_load(builder, target, vector) for target in targets]
    before, body = builder.block, builder.append_basic_block("step")
    after = builder.append_basic_block("done")
    builder.branch(body)
    builder.position_at_end(body)
    place, *vectors = phis = [builder.phi(type) for type in (_I64, *[vector] * len(targets))]
    results = step(place, vectors)
    following = builder.add(place, _I64(1))
    for phi, first, next in zip(phis, [_I64(0), *begun], [following, *results], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(next, body)
    builder.cbranch(builder.icmp_signed("<", following, count), body, after)
    builder.position_at_end(after)
    for target, result in zip(targets, results, strict=True):
        builder.store(result, builder.bitcast(target, vector.as_pointer()), align=4)


def _load(builder: Any, at: Any, vector: Any) -> Any:
    return builder.load(builder.bitcast(at, vector.as_pointer()), align=4)


def _spread(builder: Any, number: Any, vector: Any) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(undefined, number, _I32(0))
    mask = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, undefined, mask)


def _fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c."""
    name = f"llvm.fmuladd.v{a.type.count}f32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(a.type, [a.type] * 3), name)
    return builder.call(function, [a, b, c])


_tall_tile, _four_tile, _three_tile, _two_tile, _one_tile = (
    _product(rows, _WIDE) for rows in (_TALL, 4, 3, 2, 1)
)
_slim_tile, _least_tile = _product(STEP, STEP), _product(1, STEP)

"""Products and maxima of small float32 matrices in registers, and sums: what LLVM does not make of plain loops.

Columns are the lanes of a register. The matrices lie row by row. Each element of a product is one chain of fused
additions in the order of `depth`, whatever tile it is computed in.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from backends.kernels.numeric import fused
from backends.kernels.registers import (
    F32,
    I32,
    I64,
    accumulate,
    arguments,
    load,
    multiply_add,
    repeat,
    shuffled,
    spread,
)  # fmt: skip
from backends.kernels.team import jit

Array = NDArray[Any]

STEP, _WIDE = 8, 16  # lanes of a narrow tile, and of a wide one
LANES = 4 * STEP  # sums of a dot product
_TALL = 8 if binding.get_host_cpu_features().get("avx512f") else 4  # rows of a wide one: what registers hold
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
    vector = ir.VectorType(F32, lanes)

    @intrinsic  # type: ignore[untyped-decorator]
    def product(
        _: Any, a: Any, at: Any, row: Any, column: Any, b: Any, place: Any, depth: Any, c: Any, left: Any, r0: Any
    ) -> Any:  # fmt: skip
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            a, at, row, column, b, place, depth, c, left, r0 = arguments(context, builder, signature, values)
            width, across = (builder.extract_value(each.shape, 1) for each in (b, c))
            targets = [
                builder.gep(c.data, [builder.add(builder.mul(builder.add(r0, I64(r)), across), left)])
                for r in range(rows)
            ]
            firsts = [builder.gep(a.data, [builder.add(at, builder.mul(row, I64(r)))]) for r in range(rows)]
            begin = builder.gep(b.data, [place])

            def add(step: Any, totals: list[Any]) -> list[Any]:
                factors = load(builder, builder.gep(begin, [builder.mul(step, width)]), vector)
                offset = builder.mul(step, column)
                numbers = [builder.load(builder.gep(first, [offset])) for first in firsts]
                return [
                    multiply_add(builder, spread(builder, number, vector), factors, total)
                    for number, total in zip(numbers, totals, strict=True)
                ]

            accumulate(builder, depth, targets, vector, add)
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
    vector = ir.VectorType(F32, STEP)

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        a, b, count = arguments(context, builder, signature, values)
        parts = [cgutils.alloca_once_value(builder, vector([0.0] * STEP)) for _ in range(LANES // STEP)]

        def add(step: Any, totals: list[Any]) -> list[Any]:
            places = [
                builder.add(builder.mul(step, I64(LANES)), I64(part * STEP)) for part in range(len(parts))
            ]
            left, right = (
                [load(builder, builder.gep(x.data, [at]), vector) for at in places] for x in (a, b)
            )
            return [multiply_add(builder, *each) for each in zip(left, right, totals, strict=True)]

        accumulate(builder, count, parts, vector, add)
        first, second, third, fourth = (builder.load(part) for part in parts)
        total = builder.fadd(builder.fadd(first, third), builder.fadd(second, fourth))
        return _halved(builder, total, builder.fadd)

    return types.float32(a, b, count), lower


def _halved(builder: Any, vector: Any, merge: Callable[[Any, Any], Any]) -> Any:
    """The first half of its lanes merged with the second, and so on until one is left."""
    size = vector.type.count
    while size > 1:
        size //= 2
        vector = merge(*(shuffled(builder, vector, vector, [*range(at, at + size)]) for at in (0, size)))
    return builder.extract_element(vector, I32(0))


@intrinsic  # type: ignore[untyped-decorator]
def row_sum(_: Any, rows: Any, row: Any, count: Any) -> Any:
    """The sum of rows[row, :count], `count` ≥ 1 and a multiple of STEP: of every STEP-th element a sum of its own,
    these added up by halves."""

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _across(builder, arguments(context, builder, signature, values), 0.0, builder.fadd)

    return types.float32(rows, row, count), lower


@intrinsic  # type: ignore[untyped-decorator]
def row_maximum(_: Any, rows: Any, row: Any, count: Any) -> Any:
    """The largest of rows[row, :count], as `row_sum`; any number or NaN where one is NaN."""

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        larger = partial(_larger, builder)
        return _across(builder, arguments(context, builder, signature, values), float("-inf"), larger)

    return types.float32(rows, row, count), lower


def _across(builder: Any, values: list[Any], first: float, merge: Callable[[Any, Any], Any]) -> Any:
    rows, row, count = values
    vector = ir.VectorType(F32, STEP)
    begin = builder.gep(rows.data, [builder.mul(row, builder.extract_value(rows.shape, 1))])

    def step(place: Any, totals: list[Any]) -> list[Any]:
        at = builder.gep(begin, [builder.mul(place, I64(STEP))])
        return [merge(total, load(builder, at, vector)) for total in totals]

    (total,) = repeat(builder, builder.udiv(count, I64(STEP)), [vector([first] * STEP)], step)
    return _halved(builder, total, merge)


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic  # type: ignore[untyped-decorator]
def maximum(_: Any, rows: Any, left: Any, count: Any, folded: Any) -> Any:
    """folded[left : left + STEP] = the largest of these columns of the first `count` ≥ 1 rows, and what it has."""
    vector = ir.VectorType(F32, STEP)

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        rows, left, count, folded = arguments(context, builder, signature, values)
        width, begin = builder.extract_value(rows.shape, 1), builder.gep(rows.data, [left])

        def add(place: Any, totals: list[Any]) -> list[Any]:
            row = load(builder, builder.gep(begin, [builder.mul(place, width)]), vector)
            return [_larger(builder, total, row) for total in totals]

        accumulate(builder, count, [builder.gep(folded.data, [left])], vector, add)
        return context.get_dummy_value()

    return types.void(rows, left, count, folded), lower


_tall_tile, _four_tile, _three_tile, _two_tile, _one_tile = (
    _product(rows, _WIDE) for rows in (_TALL, 4, 3, 2, 1)
)
_slim_tile, _least_tile = _product(STEP, STEP), _product(1, STEP)

"""Products and sums of small float32 matrices in registers: what LLVM does not make of plain loops.

Columns are the lanes of a register. The matrices lie row by row, their widths are multiples of STEP.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from backends.kernels.team import jit

Array = NDArray[Any]

STEP, _WIDE = 8, 16  # lanes of a narrow tile, and of a wide one
_TALL = 8 if binding.get_host_cpu_features().get("avx512f") else 4  # rows of a wide one: what registers hold
_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()


@jit
def multiply(a: Array, row: int, column: int, b: Array, depth: int, c: Array, rows: int) -> None:
    """c[:rows] += a · b[:depth]; element (r, d) of `a` is r · row + d · column from its first one.

    `rows` and the width of `b` and `c` are multiples of STEP.
    """
    width = b.shape[1]
    wide = width // _WIDE * _WIDE
    for left in range(0, wide, _WIDE):
        for r in range(0, rows, _TALL):
            _wide_product(a, r * row, row, column, b, left, depth, c, r)
    if wide < width:
        for r in range(0, rows, STEP):
            _narrow_product(a, r * row, row, column, b, wide, depth, c, r)


def _product(rows: int, lanes: int) -> Any:
    """An intrinsic for one tile: c[r0 : r0 + rows, left : left + lanes] += a · b[:, left : left + lanes].

    Its sums stay in registers over the loop; an element of `a` is spread over all lanes. `depth` ≥ 1.
    """
    vector = ir.VectorType(_F32, lanes)

    @intrinsic  # type: ignore[untyped-decorator]
    def product(
        _: Any, a: Any, at: Any, row: Any, column: Any, b: Any, left: Any, depth: Any, c: Any, r0: Any
    ) -> Any:
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            a, at, row, column, b, left, depth, c, r0 = _arguments(context, builder, signature, values)
            width = builder.extract_value(b.shape, 1)
            targets = [
                builder.gep(c.data, [builder.add(builder.mul(builder.add(r0, _I64(r)), width), left)])
                for r in range(rows)
            ]
            firsts = [builder.gep(a.data, [builder.add(at, builder.mul(row, _I64(r)))]) for r in range(rows)]
            begin = builder.gep(b.data, [left])

            def add(place: Any, totals: list[Any]) -> list[Any]:
                factors = _load(builder, builder.gep(begin, [builder.mul(place, width)]), vector)
                offset = builder.mul(place, column)
                numbers = [builder.load(builder.gep(first, [offset])) for first in firsts]
                return [
                    _fused(builder, _spread(builder, number, vector), factors, total)
                    for number, total in zip(numbers, totals, strict=True)
                ]

            _repeat(builder, depth, targets, vector, add)
            return context.get_dummy_value()

        return types.void(a, at, row, column, b, left, depth, c, r0), lower

    return product


def _folded(lanes: int, combine: Callable[[Any, Any, Any], Any]) -> Any:
    """An intrinsic that combines `lanes` columns of the first `count` ≥ 1 rows, and what `folded` has, into that."""
    vector = ir.VectorType(_F32, lanes)

    @intrinsic  # type: ignore[untyped-decorator]
    def fold(_: Any, rows: Any, left: Any, count: Any, folded: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            rows, left, count, folded = _arguments(context, builder, signature, values)
            width, begin = builder.extract_value(rows.shape, 1), builder.gep(rows.data, [left])

            def add(place: Any, totals: list[Any]) -> list[Any]:
                row = _load(builder, builder.gep(begin, [builder.mul(place, width)]), vector)
                return [combine(builder, total, row) for total in totals]

            _repeat(builder, count, [builder.gep(folded.data, [left])], vector, add)
            return context.get_dummy_value()

        return types.void(rows, left, count, folded), lower

    return fold


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


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _sum(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b)


_wide_product, _narrow_product = _product(_TALL, _WIDE), _product(STEP, STEP)
maximum = _folded(STEP, _larger)
total_of = _folded(STEP, _sum)

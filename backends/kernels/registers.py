"""What loops in registers are made of, as LLVM's builder puts it: loads that widen, and sums kept over a loop."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

I8, I16, I32, I64, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


def arguments(context: Any, builder: Any, signature: Any, values: Any) -> list[Any]:
    """Arrays as structures, integers in 64 bits."""
    return [
        context.make_array(type)(context, builder, value)
        if isinstance(type, types.Array)
        else context.cast(builder, value, type, types.int64)
        for type, value in zip(signature.args, values, strict=True)
    ]


def accumulate(
    builder: Any, count: Any, targets: list[Any], vector: Any, step: Callable[[Any, list[Any]], list[Any]]
) -> None:
    """`repeat` for the vectors at `targets`; in registers meanwhile."""
    results = repeat(builder, count, [load(builder, target, vector) for target in targets], step)
    for target, result in zip(targets, results, strict=True):
        store(builder, result, target)


def repeat(
    builder: Any, count: Any, vectors: list[Any], step: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """vectors → step(place, vectors) for each place < count, which is at least 1."""
    before, body = builder.block, builder.append_basic_block("step")
    builder.branch(body)
    builder.position_at_end(body)
    place, *current = phis = [builder.phi(type) for type in (I64, *(vector.type for vector in vectors))]
    results = step(place, current)
    following, end = builder.add(place, I64(1)), builder.block
    for phi, first, next in zip(phis, [I64(0), *vectors], [following, *results], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(next, end)
    after = builder.append_basic_block("done")
    builder.cbranch(builder.icmp_signed("<", following, count), body, after)
    builder.position_at_end(after)
    return results


def load(builder: Any, at: Any, vector: Any, align: int = 4) -> Any:
    return builder.load(builder.bitcast(at, vector.as_pointer()), align=align)


def store(builder: Any, vector: Any, at: Any) -> None:
    builder.store(vector, builder.bitcast(at, vector.type.as_pointer()), align=4)


def prefetch(builder: Any, at: Any) -> None:
    """Bring what lies there into the second of the core's caches: from memory, more lines come into it at a time than
    into the first."""
    byte, (read, level, data) = I8.as_pointer(), (0, 2, 1)
    type = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, type, "llvm.prefetch.p0i8")
    builder.call(function, [builder.bitcast(at, byte), I32(read), I32(level), I32(data)])


def spread(builder: Any, number: Any, vector: Any) -> Any:
    undefined = vector(ir.Undefined)
    one = builder.insert_element(undefined, number, I32(0))
    return shuffled(builder, one, undefined, [0] * vector.count)


def shuffled(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    """These lanes of two vectors; those of the second one come after those of the first."""
    return builder.shuffle_vector(a, b, ir.VectorType(I32, len(lanes))(lanes))


def joined(builder: Any, vectors: list[Any]) -> Any:
    """One after another; a power of two of them."""
    while len(vectors) > 1:
        lanes = [*range(2 * vectors[0].type.count)]
        vectors = [shuffled(builder, vectors[j], vectors[j + 1], lanes) for j in range(0, len(vectors), 2)]
    return vectors[0]


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c."""
    name = f"llvm.fmuladd.v{a.type.count}f32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(a.type, [a.type] * 3), name)
    return builder.call(function, [a, b, c])


def widened(builder: Any, at: Any, vector: Any) -> Any:
    """As `numeric.widen`, a register of them."""
    if at.type.pointee == F32:
        return load(builder, at, vector)
    if at.type.pointee == I8:
        codes = ir.VectorType(I8, vector.count)
        return builder.sitofp(builder.load(builder.bitcast(at, codes.as_pointer()), align=1), vector)
    shorts, words = ir.VectorType(I16, vector.count), ir.VectorType(I32, vector.count)
    bits = builder.zext(builder.load(builder.bitcast(at, shorts.as_pointer()), align=2), words)
    return builder.bitcast(builder.shl(bits, words([16] * vector.count)), vector)

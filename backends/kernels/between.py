"""What a block does between its attentions, in one call for a norm and each product that hangs on it.

A step at batch 1 has some hundred small loops, and to call each of them from Python takes longer than many of them run:
what a processor has at hand of Python is gone whenever weights have passed through it.

Products are those of `int8`, `int8_avx2` and `int4`, of what a linear layer has as its `arrays`, see `Arrays`. The
same loops run as in calls of their own, so nothing of the result is different.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from backends.kernels import int4, int8, int8_avx2, loops
from backends.kernels.team import jit

Array = NDArray[Any]

# Of eight bits: what an activation of zero is, in the type that activations have, which says the kernel; then the
# packed weights, offsets, scales and biases of `int8.multiply`. Of four: the packed weights, scales, minima and biases
# of `int4.multiply`.
Arrays = tuple[Any, ...]


def multiply(x: Array, linear: Arrays, out: Array) -> None:
    """out [rows, channels] = x [rows, columns] · weightᵀ + bias, x and out in one type."""
    raise NotImplementedError("for compiled loops alone")


@jit
def _four_bits(x: Array, linear: Arrays, out: Array) -> None:
    weight, scales, minima, bias = linear
    integers = np.empty(x.shape, np.int8)
    factors, sums = np.empty((2, len(x), weight.shape[1]), np.float32)
    int4.quantize(x, integers, factors, sums)
    int4.multiply(integers, factors, sums, weight, scales, minima, bias, out)


@jit
def _vnni(x: Array, linear: Arrays, out: Array) -> None:
    _, weight, offsets, channel, bias = linear
    integers = np.empty((len(x), weight.shape[1] * int8.QUAD), np.uint8)
    scales = np.empty(len(x), np.float32)
    int8.quantize(x, int8.CENTRE, integers, scales)
    int8.multiply(integers, scales, weight, offsets, channel, bias, out)


@jit
def _avx2(x: Array, linear: Arrays, out: Array) -> None:
    _, weight, offsets, channel, bias = linear
    integers = np.empty((len(x), weight.shape[1] * int8_avx2.PAIR), np.int16)
    scales = np.empty(len(x), np.float32)
    int8.quantize(x, 0, integers, scales)
    int8_avx2.multiply(integers, scales, weight, offsets, channel, bias, out)


@overload(multiply)  # type: ignore[untyped-decorator]
def _multiply(x: Any, linear: Any, out: Any) -> Any:
    if isinstance(linear[0], types.Integer):
        chosen = _vnni if linear[0] == types.uint8 else _avx2
    else:
        chosen = _four_bits

    def multiplied(x: Any, linear: Any, out: Any) -> None:
        chosen(x, linear, out)

    return multiplied


@jit
def product(x: Array, linear: Arrays, out: Array) -> None:
    multiply(x, linear, out)


@jit
def project(residual: Array, update: Array, weight: Array, eps: Any, linear: Arrays, out: Array) -> None:
    """`loops.add_norm` and a product."""
    normed = np.empty_like(update)
    loops.add_norm(residual, update, weight, eps, normed)
    multiply(normed, linear, out)


@jit
def feed_forward(
    residual: Array,
    update: Array,
    weight: Array,
    eps: Any,
    gate_up: Arrays,
    width: int,
    gelu: bool,
    down: Arrays,
    out: Array,
) -> None:
    """`project`, `loops.gelu_mul` or `loops.silu_mul`, and a product; `width`: of the inputs of `down`."""
    both = np.empty((len(update), 2 * width), update.dtype)
    gated = np.empty((len(update), width), update.dtype)
    normed = np.empty_like(update)
    loops.add_norm(residual, update, weight, eps, normed)
    multiply(normed, gate_up, both)
    if gelu:
        loops.gelu_mul(both, gated)
    else:
        loops.silu_mul(both, gated)
    multiply(gated, down, out)

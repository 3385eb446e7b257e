"""Linear layers, and the one place that chooses how a weight is kept for its device and type."""

from collections.abc import Callable
from typing import Literal

import torch

from backends.instructions import cpu_has_bfloat16
from backends.kernels.select import CPU, Place
from backends.layers.packed import PackedLinear, RoundedLinear
from backends.layers.unread import Unread
from backends.quantization.int4 import FourBits
from backends.quantization.packed import FLOAT8, packed, rounded
from backends.quantization.stacks import Quantized

Linear = Callable[[torch.Tensor], torch.Tensor]

# How weights are kept, and what they are multiplied by. none: as the model computes, both. int4: by inputs as the model
# computes on GPUs, of eight bits on CPUs; so int8. w8a8, on GPUs: int8 by int8. fp8, on GPUs: float8 by float8.
# fp8a16, on GPUs: float8 by inputs as the model computes.
Format = Literal["none", "int4", "int8", "w8a8", "fp8", "fp8a16"]

ROUNDING: frozenset[Format] = frozenset({"w8a8", "fp8"})  # on GPUs: the inputs, too


def linear(
    weight: torch.Tensor | Unread | Quantized,
    bias: torch.Tensor | None = None,
    *,
    format: Format = "none",
    place: Place = CPU,
) -> Linear:
    """x [tokens, in] → x · weightᵀ + bias [tokens, out] in `place`, for `weight` [out, in] in x's type or quantised.

    `format`: what whole weights are rounded to, and whether inputs are rounded; four bits are given as such.

    On a CPU, bfloat16 with instructions for it is kept in oneDNN's blocked order: the same products, in a half to
    two thirds of the time at 1 to 64 rows. Everything else is plain, float32 bit by bit. `int8` and weights of four
    bits are described in `backends.layers.int8` and `backends.layers.int4`, quantised weights on GPUs in
    `backends.layers.packed`. Raises ValueError for quantised weights that a device has no kernel for.
    """
    on_gpu = place.device.type != "cpu" or place.capability is not None
    if isinstance(weight, Unread) and (on_gpu or format != "int8"):
        weight = weight.whole()
    if on_gpu:
        return _on_gpu(weight, bias, format, place)
    if isinstance(weight, FourBits):
        from backends.layers.int4 import Int4Linear

        return Int4Linear(weight, bias)
    if format == "int8" and isinstance(weight, torch.Tensor | Unread):
        from backends.layers.int8 import Int8Linear  # numba is imported only where it serves

        return Int8Linear(weight, bias)
    if not isinstance(weight, torch.Tensor):
        raise ValueError(f"weights kept as {type(weight).__name__} are for GPUs; CPUs want them dequantised")
    if format != "none":
        raise ValueError(f"{format} needs a GPU")
    packs = weight.dtype == torch.bfloat16 and cpu_has_bfloat16()
    return _Packed(weight, bias) if packs else _Plain(weight, bias)


def _on_gpu(
    weight: torch.Tensor | Quantized, bias: torch.Tensor | None, format: Format, place: Place
) -> Linear:
    bias = None if bias is None else bias.to(place.device)
    kind = RoundedLinear if format in ROUNDING else PackedLinear
    if not isinstance(weight, torch.Tensor):
        return kind(packed(weight), bias, place)
    if format == "none":
        return _Plain(weight.to(place.device), bias)
    return kind(rounded(weight, FLOAT8 if format in ("fp8", "fp8a16") else torch.int8), bias, place)


class _Plain:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


class _Packed:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")

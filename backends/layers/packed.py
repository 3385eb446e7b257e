"""Linear layers of quantised weights on GPUs: what the file has stays packed in the GPU's memory.

Weights alone are quantised, and inputs keep their type: products of a few rows wait for the weights, and inputs
rounded to eight bits cost quality. float8 is the exception where the GPU multiplies it: checkpoints of that kind are
made for inputs of float8.
"""

import torch

from backends.kernels.products import Products
from backends.quantization.grouped import Grouped
from backends.quantization.int4 import FourBits
from backends.quantization.packed import FLOAT8, Packed, from_float8, from_four_bits, from_grouped
from backends.quantization.packing.fp8 import Float8

Quantized = FourBits | Grouped | Float8


class PackedLinear:
    """x [rows, in] → x · weightᵀ + bias [rows, out] in x's type."""

    def __init__(self, weight: Packed, bias: torch.Tensor | None, products: Products) -> None:
        self.weight, self.bias, self._products = weight, bias, products

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._products.weight_only(_ordered(x, self.weight), self.weight, self.bias)


class RoundedLinear:
    """The same of inputs that are rounded, each row by itself, to the type of the weights: int8 or float8.

    A row with NaN or infinity gives NaN.
    """

    def __init__(self, weight: Packed, bias: torch.Tensor | None, products: Products) -> None:
        self.weight, self.bias, self._products = weight, bias, products

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        values, scales = self._products.quantize_rows(_ordered(x, self.weight), self.weight.values.dtype)
        return self._products.scaled(values, scales, self.weight, self.bias, dtype=x.dtype)


def quantized_linear(
    weight: Quantized | Packed, bias: torch.Tensor | None, products: Products, device: torch.device
) -> PackedLinear | RoundedLinear:
    """For weights of any of the kinds. Raises ValueError for what the kernels do not have."""
    packed = _packed(weight).to(device)
    rounds = packed.values.dtype == FLOAT8 and products.multiplies_float8
    return (RoundedLinear if rounds else PackedLinear)(packed, bias, products)


def _packed(weight: Quantized | Packed) -> Packed:
    if isinstance(weight, FourBits):
        return from_four_bits(weight)
    if isinstance(weight, Grouped):
        return from_grouped(weight)
    return from_float8(weight) if isinstance(weight, Float8) else weight


def _ordered(x: torch.Tensor, weight: Packed) -> torch.Tensor:
    """The inputs in the order of the weight's columns."""
    return x if weight.order is None else x.index_select(1, weight.order)

"""Linear layers of quantised weights on GPUs: what the file has stays packed in the GPU's memory."""

import torch

from backends.kernels.select import Place
from backends.quantization.packed import Packed


class PackedLinear:
    """x [rows, in] → x · weightᵀ + bias [rows, out] in x's type."""

    def __init__(self, weight: Packed, bias: torch.Tensor | None, place: Place) -> None:
        self.weight, self.bias = weight.to(place.device), bias
        self._products = place.products

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._products.weight_only(_ordered(x, self.weight), self.weight, self.bias)


class RoundedLinear(PackedLinear):
    """The same of inputs that are rounded, each row by itself, to the type of the weights: int8 or float8.

    A row with NaN or infinity gives NaN.
    """

    def __init__(self, weight: Packed, bias: torch.Tensor | None, place: Place) -> None:
        """Raises ValueError for weights that are more than a value times a scale."""
        if weight.has_four_bits or weight.zeros is not None:
            raise ValueError(
                "inputs of eight bits want weights of eight bits without zeros; int8 keeps inputs whole"
            )
        super().__init__(weight, bias, place)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        values, scales = self._products.quantize_rows(_ordered(x, self.weight), self.weight.values.dtype)
        return self._products.scaled(values, scales, self.weight, self.bias, dtype=x.dtype)


def _ordered(x: torch.Tensor, weight: Packed) -> torch.Tensor:
    """The inputs in the order of the weight's columns."""
    return x if weight.order is None else x.index_select(1, weight.order)

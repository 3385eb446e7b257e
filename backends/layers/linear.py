"""Linear layers, and the one place that chooses how a weight is kept for its device and type."""

from collections.abc import Callable

import torch

from backends.instructions import cpu_has_bfloat16
from backends.kernels.select import products_for
from backends.layers.packed import Quantized, quantized_linear
from backends.quantization.int4 import FourBits
from backends.quantization.packed import rounded

Linear = Callable[[torch.Tensor], torch.Tensor]


CPU = torch.device("cpu")


def linear(
    weight: torch.Tensor | Quantized,
    bias: torch.Tensor | None = None,
    *,
    int8: bool = False,
    device: torch.device | None = None,
) -> Linear:
    """x [tokens, in] → x · weightᵀ + bias [tokens, out] on `device`, for `weight` [out, in] in x's type or quantised.

    `device`: None is where a whole weight lies, or a CPU. `int8` rounds whole weights to it.

    On a CPU, bfloat16 with instructions for it is kept in oneDNN's blocked order: the same products, in a half to
    two thirds of the time at 1 to 64 rows. Everything else is plain, float32 bit by bit. `int8` and weights of four
    bits are described in `backends.layers.int8` and `backends.layers.int4`, quantised weights on GPUs in
    `backends.layers.packed`. Raises ValueError for quantised weights that a device has no kernel for.
    """
    if device is None:
        device = weight.device if isinstance(weight, torch.Tensor) else CPU
    if device.type != "cpu":
        return _on_gpu(weight, bias, int8, device)
    if isinstance(weight, FourBits):
        from backends.layers.int4 import Int4Linear

        return Int4Linear(weight, bias)
    if not isinstance(weight, torch.Tensor):
        raise ValueError(f"weights kept as {type(weight).__name__} are for GPUs; CPUs want them dequantised")
    if int8:
        from backends.layers.int8 import Int8Linear  # numba is imported only where it serves

        return Int8Linear(weight, bias)
    packs = weight.dtype == torch.bfloat16 and cpu_has_bfloat16()
    return _Packed(weight, bias) if packs else _Plain(weight, bias)


def _on_gpu(
    weight: torch.Tensor | Quantized, bias: torch.Tensor | None, int8: bool, device: torch.device
) -> Linear:
    bias = None if bias is None else bias.to(device)
    if not isinstance(weight, torch.Tensor):
        return quantized_linear(weight, bias, products_for(device), device)
    if int8:
        return quantized_linear(rounded(weight), bias, products_for(device), device)
    return _Plain(weight.to(device), bias)


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

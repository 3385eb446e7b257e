"""Linear layers, and the one place that chooses how a weight is kept for its device and type."""

from collections.abc import Callable

import torch

from backends.instructions import cpu_has_bfloat16
from backends.quantization.int4 import FourBits

Linear = Callable[[torch.Tensor], torch.Tensor]


def linear(
    weight: torch.Tensor | FourBits, bias: torch.Tensor | None = None, *, int8: bool = False
) -> Linear:
    """x [tokens, in] → x · weightᵀ + bias [tokens, out], for `weight` [out, in] in x's type and on its device.

    bfloat16 on a CPU with instructions for it is kept in oneDNN's blocked order: the same products, in a half to
    two thirds of the time at 1 to 64 rows. Everything else is plain, float32 bit by bit. `int8` and weights of four
    bits are described in `backends.layers.int8` and `backends.layers.int4`.
    """
    if isinstance(weight, FourBits):
        from backends.layers.int4 import Int4Linear

        return Int4Linear(weight, bias)
    if int8:
        from backends.layers.int8 import Int8Linear  # numba is imported only where it serves

        return Int8Linear(weight, bias)
    packs = weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and cpu_has_bfloat16()
    return _Packed(weight, bias) if packs else _Plain(weight, bias)


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

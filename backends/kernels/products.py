"""Products with quantised weights in plain torch: what the faster ones must equal, on any device."""

from dataclasses import dataclass
from typing import Protocol

import torch

from backends.quantization.packed import FLOAT8, Packed


class WeightOnly(Protocol):
    def __call__(self, x: torch.Tensor, weight: Packed, bias: torch.Tensor | None = None) -> torch.Tensor: ...


class Scaled(Protocol):
    def __call__(
        self,
        x: torch.Tensor,
        scales: torch.Tensor,
        weight: Packed,
        bias: torch.Tensor | None = None,
        *,
        dtype: torch.dtype,
    ) -> torch.Tensor: ...


class QuantizeRows(Protocol):
    def __call__(self, x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]: ...


@dataclass(frozen=True, slots=True)
class Products:
    """The functions below, as one device has them; `scaled` has float8 only from FLOAT8_SINCE on."""

    weight_only: WeightOnly
    scaled: Scaled
    quantize_rows: QuantizeRows


FLOAT8_SINCE = (8, 9)  # the first compute capability that converts float8 e4m3, and multiplies it
LARGEST = {torch.int8: 127.0, FLOAT8: 448.0}


def weight_only(x: torch.Tensor, weight: Packed, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [rows, in] · weightᵀ + bias, [rows, out] in x's type. The inputs are in the weight's order."""
    out = x.double() @ weight.dequantized().double().T
    return (out if bias is None else out + bias.double()).to(x.dtype)


def scaled(
    x: torch.Tensor,
    scales: torch.Tensor,
    weight: Packed,
    bias: torch.Tensor | None = None,
    *,
    dtype: torch.dtype,
) -> torch.Tensor:
    """(x [rows, in] · scales [rows]) · weightᵀ + bias, [rows, out] of `dtype`; x is of the weight's own type.

    Each sum is rounded once to float32, and multiplied by the scale of its row, and then by that of its channel.
    """
    if len(weight.scales) > 1:
        out = (x.double() @ weight.dequantized().double().T).float() * scales[:, None]
    else:
        sums = (x.double() @ weight.values.double().T).float()
        out = sums * scales[:, None] * weight.scales[0].float()
    return (out if bias is None else out + bias.float()).to(dtype)


def quantize_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, in] as int8 or float8_e4m3fn, and the float32 scale of each row, its largest to the type's largest.

    A row with NaN or infinity gets a scale of NaN, and so gives NaN. Integers are rounded to the nearest, halves to
    even.
    """
    x, most = x.float(), LARGEST[dtype]
    largest = x.abs().amax(1).clamp(min=1e-30)
    steps = (x * (most / largest)[:, None]).nan_to_num(0.0).clamp(-most, most)
    values = (steps.round() if dtype == torch.int8 else steps).to(dtype)
    return values, torch.where(largest.isfinite(), largest / most, torch.nan)


PLAIN = Products(weight_only, scaled, quantize_rows)

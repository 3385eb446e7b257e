"""Linear layers of 8-bit integers on CPUs: weights with a scale per output channel, activations with one per token.

The integers of a row, and so its result, depend on nothing but the row: not on its neighbours, their number, or
which of the three products below runs. Quality and speed: `benchmarks/formats.py`.
"""

import numpy as np
import torch

from backends.kernels import int8

FEW = 32  # rows that the kernel for few rows is made for; beyond, torch multiplies whole matrices
_EXACT = 1024  # so many products of two int8 add up exactly in float32: 2^7 · 2^7 · 2^10 = 2^24


class Int8Linear:
    """x [rows, in] → x · weightᵀ + bias [rows, out] in x's type, float32 or bfloat16.

    `weight` [out, in] of any floating type. A row with NaN or infinity gives NaN. Raises ValueError for weights
    that are not finite and for more columns than sums of 32 bits can hold.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.channels, self.columns = weight.shape
        if self.columns > int8.MAX_COLUMNS:
            raise ValueError(f"int8: {self.columns} columns are more than {int8.MAX_COLUMNS}")
        integers, scales = _quantized(weight)
        self.scales = scales.numpy()
        self.offsets = (int8.CENTRE * integers.sum(1, dtype=torch.int32)).numpy()
        self.bias = np.zeros(self.channels, np.float32) if bias is None else bias.float().numpy()
        self.packed = _pack(integers)
        self._fast = int8.cpu_has_vnni()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows, width = len(x), self.packed.shape[1] * int8.QUAD
        integers = torch.empty(rows, width, dtype=torch.uint8)
        scales = np.empty(rows, np.float32)
        int8.quantize(_array(x.contiguous()), integers.numpy(), scales)
        out = x.new_empty(rows, self.channels)
        if self._fast and rows <= FEW:
            factors = (self.packed.numpy(), self.offsets, self.scales, self.bias)
            int8.multiply(integers.numpy(), scales, *factors, _array(out))
            return out
        product = _matrix_product if self._fast else _plain_product
        sums = product((integers ^ int8.CENTRE).view(torch.int8), _unpack(self.packed)[: self.channels])
        int8.finish(sums.numpy(), scales, np.zeros_like(self.offsets), self.scales, self.bias, _array(out))
        return out


def _quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotated weights as int8 within ±127, and float32 [out] that they are to be multiplied by."""
    rotated = weight.to(torch.float32, copy=True).contiguous()
    int8.rotate(rotated.numpy())
    largest = rotated.abs().amax(1)
    if not largest.isfinite().all():
        raise ValueError("int8: a weight is not finite")
    scales = largest.clamp(min=1e-30) / 127
    return rotated.div_(scales[:, None]).round_().to(torch.int8), scales


def _pack(integers: torch.Tensor) -> torch.Tensor:
    """int8 [out, in] in the order of `backends.kernels.int8`, filled up with zeros."""
    channels, columns = integers.shape
    rows, quads = -(-channels // int8.WIDE), -(-columns // int8.QUAD)
    whole = integers.new_zeros(rows * int8.WIDE, quads * int8.QUAD)
    whole[:channels, :columns] = integers
    return whole.view(rows, int8.WIDE, quads, int8.QUAD).transpose(1, 2).contiguous()


def _unpack(packed: torch.Tensor) -> torch.Tensor:
    """The reverse of `_pack`, with the zeros. A second copy of all weights would cost what int8 saves."""
    fours = packed.view(torch.int32).squeeze(-1).transpose(1, 2).contiguous()
    return fours.view(-1, fours.shape[2]).view(torch.int8)


def _matrix_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """int8 [rows, in] · int8 [out, in]ᵀ → int32, exact where the CPU adds bytes into 32 bits, as VNNI and AMX do."""
    return torch._int_mm(x, weight.T)


def _plain_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same on any CPU, without the 16-bit sums of older instructions, which saturate."""
    sums = torch.zeros(len(x), len(weight), dtype=torch.int32)
    for start in range(0, x.shape[1], _EXACT):
        part = slice(start, start + _EXACT)
        sums += (x[:, part].float() @ weight[:, part].float().T).to(torch.int32)
    return sums


def _array(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as kernels take it: bfloat16 as int16."""
    array: np.ndarray = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array

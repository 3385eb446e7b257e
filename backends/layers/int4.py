"""Linear layers of 4-bit integers on CPUs, in groups of 32 columns; activations with a scale for each group.

The integers of a row, and so its result, depend on nothing but the row. Quality and speed: `benchmarks/formats.py`.
"""

import numpy as np
import torch

from backends.kernels import int4
from backends.kernels.between import Arrays
from backends.layers.int8 import as_array
from backends.quantization.int4 import FourBits


class Int4Linear:
    """x [rows, in] → x · weightᵀ + bias [rows, out] in x's type, float32 or bfloat16.

    A row with NaN or infinity gives NaN. Scales are kept in 16 bits where these hold them exactly.
    """

    def __init__(self, weight: FourBits, bias: torch.Tensor | None = None) -> None:
        self.channels, self.columns = weight.integers.shape
        self.order = weight.order
        self.packed = _pack(weight.integers).numpy()
        tables = [_in_lanes(table) for table in (weight.scales, weight.minima)]
        if all(torch.equal(table.half().float(), table) for table in tables):
            tables = [table.half().view(torch.uint16) for table in tables]
        self.scales, self.minima = (table.numpy() for table in tables)
        self.bias = np.zeros(self.channels, np.float32) if bias is None else bias.float().numpy()
        self.arrays: Arrays | None = None  # for `backends.kernels.between`
        if self.order is None:
            self.arrays = self.packed, self.scales, self.minima, self.bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows, groups = x.shape[0], self.packed.shape[1]
        integers = np.empty((rows, self.columns), np.int8)
        scales, sums = np.empty((2, rows, groups), np.float32)
        x = x.contiguous() if self.order is None else x.index_select(1, self.order)
        int4.quantize(as_array(x), integers, scales, sums)
        out = x.new_empty(rows, self.channels)
        weights = self.packed, self.scales, self.minima
        int4.multiply(integers, scales, sums, *weights, self.bias, as_array(out))
        return out


def _pack(integers: torch.Tensor) -> torch.Tensor:
    """uint8 [out, in] of 0 … 15 in the order of `backends.kernels.int4`, the channels filled up with zeros."""
    lanes = _in_lanes(integers, int4.GROUP)  # [blocks, groups, 8 channels, 32 columns]
    quads = lanes.view(*lanes.shape[:3], 4, 2, 4).permute(4, 0, 1, 3, 2, 5)
    low, high = quads  # each [blocks, groups, 4, 8 channels, 4 columns]
    return (low | (high << 4)).contiguous()


def _in_lanes(table: torch.Tensor, width: int = 1) -> torch.Tensor:
    """[channels, groups · width] as [blocks, groups, 8] or, if wider, [blocks, groups, 8, width]."""
    channels, columns = table.shape
    whole = table.new_zeros(-(-channels // int4.WIDE) * int4.WIDE, columns)
    whole[:channels] = table
    lanes = whole.view(-1, int4.LANES, columns // width, width).transpose(1, 2).contiguous()
    return lanes if width > 1 else lanes.squeeze(-1)

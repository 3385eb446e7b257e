"""Quantised weights as the GPU kernels read them: one layout, whatever the file's was."""

from dataclasses import dataclass

import torch

from backends.quantization.grouped import Grouped
from backends.quantization.int4 import GROUP, FourBits
from backends.quantization.packing.fp8 import LARGEST, Float8
from backends.quantization.stacks import Quantized

BLOCK = 32  # columns whose nibbles lie together
MIDDLE = 8  # the zero of four bits where neither zeros nor minima are given
FLOAT8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Packed:
    """The weights of one linear layer, each (value − zero) · scale + minimum.

    values   int8 or float8_e4m3fn [out, in]; or four bits, uint8 [out, in / 2]: byte j of the 16 of a block has its
             column j in the low nibble and column 16 + j in the high one, so that a kernel multiplies by both halves
             of a block as they are
    scales   float16, bfloat16 or float32 [groups, out]
    group    columns that share a scale; the last ones may have fewer
    zeros    uint8 (int8 beside int8 values) [groups, out]; None: 8 for four bits without minima, 0 otherwise
    minima   as scales, of four bits only; or None
    order    int64 [in]: the input that each column is multiplied by; None: its own
    """

    values: torch.Tensor
    scales: torch.Tensor
    group: int
    zeros: torch.Tensor | None = None
    minima: torch.Tensor | None = None
    order: torch.Tensor | None = None

    @property
    def has_four_bits(self) -> bool:
        return bool(self.values.dtype == torch.uint8)

    @property
    def channels(self) -> int:
        return len(self.values)

    @property
    def columns(self) -> int:
        return int(self.values.shape[1]) * (2 if self.has_four_bits else 1)

    @property
    def nbytes(self) -> int:
        """What a product reads of it."""
        tables = (self.values, self.scales, self.zeros, self.minima)
        return sum(table.nbytes for table in tables if table is not None)

    def to(self, device: torch.device | str) -> "Packed":
        def moved(table: torch.Tensor | None) -> torch.Tensor | None:
            return None if table is None else table.to(device)

        values, scales = self.values.to(device), self.scales.to(device)
        return Packed(values, scales, self.group, moved(self.zeros), moved(self.minima), moved(self.order))

    def dequantized(self) -> torch.Tensor:
        """float32 [out, in], the columns as they lie here: to be multiplied by inputs in `order`."""
        weights = (unpack_nibbles(self.values) if self.has_four_bits else self.values).float()
        if self.zeros is not None:
            weights -= self._each(self.zeros)
        elif self.has_four_bits and self.minima is None:
            weights -= MIDDLE
        weights *= self._each(self.scales)
        return weights if self.minima is None else weights.add_(self._each(self.minima))

    def _each(self, table: torch.Tensor) -> torch.Tensor:
        """A table's entry for each weight."""
        return table.T.float().repeat_interleave(self.group, 1)[:, : self.columns]


def pack_nibbles(integers: torch.Tensor) -> torch.Tensor:
    """uint8 [out, in] of 0 … 15 to `Packed.values`. Raises ValueError for columns that are not whole blocks."""
    channels, columns = integers.shape
    if columns % BLOCK:
        raise ValueError(f"four bits: {columns} columns are not a multiple of {BLOCK}")
    low, high = integers.reshape(channels, -1, 2, BLOCK // 2).unbind(2)
    return (low | (high << 4)).view(channels, -1)


def unpack_nibbles(values: torch.Tensor) -> torch.Tensor:
    """The reverse."""
    halves = values.view(len(values), -1, 1, BLOCK // 2)
    return torch.cat([halves & 15, halves >> 4], 2).view(len(values), -1)


def from_grouped(weight: Grouped) -> Packed:
    """AWQ's, GPTQ's and compressed-tensors' weights, and all others of that kind; zeros in the middle are left out.

    Groups of scattered columns (act-order) become neighbours, `order` says whence. Raises ValueError for what the
    kernels do not have: other bits than 4 and 8, groups that are not multiples of 32 columns or not of one size.
    """
    if weight.bits not in (4, 8):
        raise ValueError(f"weights of {weight.bits} bits: the kernels for GPUs have 4 and 8")
    columns, groups = weight.integers.shape[1], weight.scales.shape[1]
    group = columns // groups
    if groups > 1 and (columns % groups or group % BLOCK):
        raise ValueError(
            f"{columns} columns in {groups} groups: the kernels for GPUs have multiples of {BLOCK}"
        )
    order = None if weight.column_groups is None else _order(weight.column_groups, groups)
    integers = weight.integers if order is None else weight.integers[:, order]
    scales = weight.scales.T.contiguous()
    middle = 1 << (weight.bits - 1)
    zeros = None if (weight.zeros == middle).all() else weight.zeros.T.contiguous()
    if weight.bits == 4:
        return Packed(pack_nibbles(integers), scales, group, zeros, order=order)
    signed = None if zeros is None else _signed(zeros)
    return Packed(_signed(integers.contiguous()), scales, group, signed, order=order)


def _signed(integers: torch.Tensor) -> torch.Tensor:
    """uint8 less 128, as int8."""
    return (integers ^ 128).view(torch.int8)


def _order(column_groups: torch.Tensor, groups: int) -> torch.Tensor:
    """The columns of each group one after another, int64 [in]."""
    sizes = torch.bincount(column_groups, minlength=groups)
    if (sizes != sizes[0]).any():
        raise ValueError(
            f"g_idx: its groups have {int(sizes.min())} to {int(sizes.max())} columns, not one number"
        )
    return torch.argsort(column_groups, stable=True)


def from_four_bits(weight: FourBits) -> Packed:
    """Weights of four bits in the least that holds them exactly: larger groups where neighbours have the same tables,
    zeros in place of minima where these are multiples of the scales, tables of 16 bits where these do."""
    scales, minima, group = weight.scales, weight.minima, GROUP
    while _in_pairs(scales) and _in_pairs(minima):
        scales, minima, group = scales[:, ::2], minima[:, ::2], 2 * group
    values, order = pack_nibbles(weight.integers), weight.order
    zeros = torch.round(-minima / scales).nan_to_num(0.0, 0.0, 0.0).clamp(0, 15)
    is_zeros = torch.equal(-zeros * scales, minima)
    scales = scales.T.contiguous()
    if not is_zeros:
        return Packed(values, _halved(scales), group, minima=_halved(minima.T.contiguous()), order=order)
    symmetric = (zeros == MIDDLE).all()
    return Packed(
        values,
        _halved(scales),
        group,
        None if symmetric else zeros.T.to(torch.uint8).contiguous(),
        order=order,
    )


def _in_pairs(table: torch.Tensor) -> bool:
    """Whether columns 0 and 1 are the same, 2 and 3, and so on."""
    return table.shape[1] % 2 == 0 and bool(torch.equal(table[:, ::2], table[:, 1::2]))


def _halved(table: torch.Tensor) -> torch.Tensor:
    return table.half() if torch.equal(table.half().float(), table) else table


def from_float8(weight: Float8) -> Packed:
    """One scale for all, for each channel, or for each block. Raises ValueError for a weight that is no number:
    kernels do not look for these."""
    if ((weight.values.view(torch.uint8) & 0x7F) == 0x7F).any():
        raise ValueError("float8: a weight is not a number")
    columns, group = weight.values.shape[1], weight.block[1]
    if group < columns and group % BLOCK:
        raise ValueError(f"float8: blocks of {group} columns; the kernels for GPUs have multiples of {BLOCK}")
    scales = weight.by_row().scales.float()
    return Packed(weight.values.contiguous(), scales.T.contiguous(), min(group, columns))


def packed(weight: Quantized) -> Packed:
    """Weights of any of the kinds. Raises ValueError for what the kernels do not have."""
    if isinstance(weight, FourBits):
        return from_four_bits(weight)
    return from_grouped(weight) if isinstance(weight, Grouped) else from_float8(weight)


def rounded(weight: torch.Tensor, dtype: torch.dtype = torch.int8) -> Packed:
    """Whole weights [out, in] to int8 or float8_e4m3fn, the largest of each channel to the type's largest.

    Raises ValueError for weights that are not finite.
    """
    largest = weight.float().abs().amax(1)
    if not largest.isfinite().all():
        raise ValueError(f"{str(dtype).removeprefix('torch.')}: a weight is not finite")
    most = 127.0 if dtype == torch.int8 else LARGEST
    scales = largest.clamp(min=1e-30) / most
    steps = (weight.float() / scales[:, None]).clamp(-most, most)
    values = (steps.round() if dtype == torch.int8 else steps).to(dtype)
    return Packed(values, scales[None], weight.shape[1])

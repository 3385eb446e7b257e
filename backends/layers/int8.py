"""Linear layers of 8-bit integers on CPUs: weights with a scale per output channel, activations with one per token.

The integers of a row, and so its result, depend on nothing but the row: not on its neighbours, their number, or
which of the products below runs; each keeps the weights in an order of its own. Quality and speed:
`benchmarks/formats.py`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from backends.kernels import between, int8, int8_avx2
from backends.layers.unread import Unread

_AT_ONCE = 1 << 20  # weights that are rounded and packed together: what lies in between is small
_ROWS = 256  # or a multiple of them, which kernels and files have as wholes
_EXACT = 1024  # so many products of two int8 add up exactly in float32: 2^7 · 2^7 · 2^10 = 2^24

Floats = NDArray[np.float32]
Integers = NDArray[np.integer[Any]]
Loops = tuple[np.ndarray, np.ndarray] | None


class Product(Protocol):
    """Weights of int8 [out, in], and how to multiply by them. The integer product is exact."""

    zero: ClassVar[np.integer[Any]]  # what an activation of zero is, in the type that activations have
    width: int  # columns that activations must have
    loops: Loops  # packed weights and offsets, where loops of ours multiply

    def __init__(self, weight: torch.Tensor) -> None: ...

    def __call__(self, x: Integers, scales: Floats, channel: Floats, bias: Floats, out: np.ndarray) -> None:
        """out = (x − zero) · weightᵀ · scales · channel + bias."""
        ...


class Int8Linear:
    """x [rows, in] → x · weightᵀ + bias [rows, out] in x's type, float32 or bfloat16.

    `weight` [out, in] of any floating type; one that is unread is never there as a whole. A row with NaN or infinity
    gives NaN. Raises ValueError for weights that are not finite and for more columns than sums of 32 bits can hold.
    """

    def __init__(self, weight: torch.Tensor | Unread, bias: torch.Tensor | None = None) -> None:
        shape: Sequence[int] = weight.shape
        self.channels, self.columns = shape
        if self.columns > int8.MAX_COLUMNS:
            raise ValueError(f"int8: {self.columns} columns are more than {int8.MAX_COLUMNS}")
        integers, scales = _quantized(weight)
        self.scales = scales.numpy()
        self.bias = np.zeros(self.channels, np.float32) if bias is None else bias.float().numpy()
        self.product = product = fastest()(integers)
        self.arrays: between.Arrays | None = None  # for `backends.kernels.between`
        if product.loops is not None:
            self.arrays = product.zero, *product.loops, self.scales, self.bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows, product = x.shape[0], self.product
        out = x.new_empty(rows, self.channels)
        if self.arrays is not None:
            between.product(as_array(x.contiguous()), self.arrays, as_array(out))
            return out
        integers, scales = np.empty((rows, product.width), product.zero.dtype), np.empty(rows, np.float32)
        int8.quantize(as_array(x.contiguous()), int(product.zero), integers, scales)
        product(integers, scales, self.scales, self.bias, as_array(out))
        return out


def fastest() -> type[Product]:
    """The product for this CPU."""
    if int8.cpu_has("avx512vnni"):
        return VnniProduct
    return Avx2Product if int8.cpu_has("avx2") else PlainProduct


class VnniProduct:
    """Bytes as they are."""

    zero: ClassVar[np.integer[Any]] = np.uint8(int8.CENTRE)

    def __init__(self, weight: torch.Tensor) -> None:
        self._packed = pack(weight, int8.WIDE, int8.QUAD).numpy()
        self._offsets = np.empty(len(weight), np.int32)
        for rows in _pieces(*weight.shape):  # for the sums, each is widened as a whole
            self._offsets[rows] = int8.CENTRE * weight[rows].sum(1, dtype=torch.int32).numpy()
        self.width = self._packed.shape[1] * int8.QUAD
        self.loops: Loops = (self._packed, self._offsets)

    def __call__(self, x: Integers, scales: Floats, channel: Floats, bias: Floats, out: np.ndarray) -> None:
        int8.multiply(x, scales, self._packed, self._offsets, channel, bias, out)


class Avx2Product:
    """Activations widened to sixteen bits."""

    zero: ClassVar[np.integer[Any]] = np.int16(0)

    def __init__(self, weight: torch.Tensor) -> None:
        self._packed = pack(weight, int8_avx2.NARROW, int8_avx2.PAIR).numpy()
        self._offsets = np.zeros(len(weight), np.int32)
        self.width = self._packed.shape[1] * int8_avx2.PAIR
        self.loops: Loops = (self._packed, self._offsets)

    def __call__(self, x: Integers, scales: Floats, channel: Floats, bias: Floats, out: np.ndarray) -> None:
        int8_avx2.multiply(x, scales, self._packed, self._offsets, channel, bias, out)


class PlainProduct:
    """For any CPU: torch's products of float32, as many columns at a time as these keep exact."""

    zero: ClassVar[np.integer[Any]] = np.int8(0)
    loops: Loops = None

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight, self.width = weight, weight.shape[1]

    def __call__(self, x: Integers, scales: Floats, channel: Floats, bias: Floats, out: np.ndarray) -> None:
        integers, sums = torch.from_numpy(x), torch.zeros(len(x), len(channel), dtype=torch.int32)
        for start in range(0, self.width, _EXACT):
            part = slice(start, start + _EXACT)
            sums += (integers[:, part].float() @ self.weight[:, part].float().T).to(torch.int32)
        int8.finish(sums.numpy(), scales, np.zeros(len(channel), np.int32), channel, bias, out)


def _quantized(weight: torch.Tensor | Unread) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotated weights as int8 within ±127, and float32 [out] that they are to be multiplied by."""
    shape: Sequence[int] = weight.shape
    channels, columns = shape
    integers, scales = torch.empty(channels, columns, dtype=torch.int8), torch.empty(channels)
    for rows in _pieces(channels, columns):
        piece = weight[rows].to(torch.float32, copy=True).contiguous()
        int8.quantize_weights(piece.numpy(), integers[rows].numpy(), scales[rows].numpy())
    if not scales.isfinite().all():
        raise ValueError("int8: a weight is not finite")
    return integers, scales


def _pieces(channels: int, columns: int) -> Iterator[slice]:
    """All rows, whole items of a kernel's work and whole blocks of a file at a time."""
    step = max(1, _AT_ONCE // columns // _ROWS) * _ROWS
    return (slice(start, min(start + step, channels)) for start in range(0, channels, step))


def pack(integers: torch.Tensor, wide: int, deep: int) -> torch.Tensor:
    """int8 [out, in] as [out / wide, in / deep, wide, deep], filled up with zeros to whole items of a kernel's work."""
    channels, columns = integers.shape
    rows, runs, word = -(-channels // int8.WIDE) * (int8.WIDE // wide), -(-columns // deep), _word(deep)
    packed = torch.empty(rows, runs, wide, dtype=word)
    for piece in _pieces(rows * wide, columns):
        part = integers[piece]
        missing = runs * deep - columns, piece.stop - piece.start - len(part)
        filled = F.pad(part, (0, missing[0], 0, missing[1])) if any(missing) else part
        lanes = filled.view(word).view(-1, wide, runs).transpose(1, 2)
        packed[piece.start // wide : piece.stop // wide] = lanes
    return packed.view(torch.int8).view(rows, runs, wide, deep)


def _word(deep: int) -> torch.dtype:
    """As long as so many integers that lie together."""
    return torch.int32 if deep == int8.QUAD else torch.int16


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as kernels take it: bfloat16 as int16."""
    array: np.ndarray = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array

"""A weight that several tensors of a file make up together, read as if it were one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from backends.models.stored import WHOLE, Kind, Part
from backends.quantization import int4
from backends.quantization.grouped import Grouped
from backends.quantization.int4 import FourBits, exact
from backends.quantization.packing.fp8 import Float8
from backends.quantization.stacks import Quantized, stacked

# Weights taken apart at a time; and rows, so that pieces are whole words and whole blocks of 8-bit floats.
_WEIGHTS, _ROWS = 1 << 20, 256


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """Weights [out, in]. `dequantize`: some rows, float32 [rows, in]."""

    type: str
    shape: tuple[int, int]
    dequantize: Callable[[range], torch.Tensor]

    @property
    def kind(self) -> Kind:
        return "small"

    def load(self, dtype: torch.dtype, part: Part = WHOLE) -> torch.Tensor:
        """As `Stored`, a few rows at a time: what lies in between is small."""
        return _loaded(self.shape, self.dequantize, dtype, part)

    def four_bits(self, part: Part = WHOLE) -> FourBits:
        raise ValueError(f"{self.type} is not a format of four bits")

    def packed(self, part: Part = WHOLE) -> Quantized:
        raise ValueError(f"{self.type} is not a format that is multiplied by as it is")


@dataclass(frozen=True, slots=True)
class GroupedTensor:
    """Weights [out, in] of small integers. `take`: some rows of them; `kind`: see `groups.kind_of`."""

    type: str
    shape: tuple[int, int]
    take: Callable[[range], Grouped]
    kind: Kind

    def load(self, dtype: torch.dtype, part: Part = WHOLE) -> torch.Tensor:
        """As `Stored`, a few rows at a time."""
        return _loaded(self.shape, lambda rows: self.take(rows).dequantized(), dtype, part)

    def four_bits(self, part: Part = WHOLE) -> FourBits:
        """As `Stored`. Raises ValueError where `kind` is not "four"."""
        return int4.stacked([exact(self.take(run)) for run in _runs(self.shape, part)])

    def packed(self, part: Part = WHOLE) -> Quantized:
        """As `Stored`."""
        if self.kind == "four":
            return self.four_bits(part)
        return stacked([self.take(run) for run in _runs(self.shape, part)])


@dataclass(frozen=True, slots=True)
class Float8Tensor:
    """Weights [out, in] of 8-bit floats. `take`: some rows of them."""

    type: str
    shape: tuple[int, int]
    take: Callable[[range], Float8]
    kind: Kind

    def load(self, dtype: torch.dtype, part: Part = WHOLE) -> torch.Tensor:
        """As `Stored`, a few rows at a time."""
        return _loaded(self.shape, lambda rows: self.take(rows).dequantized(), dtype, part)

    def four_bits(self, part: Part = WHOLE) -> FourBits:
        raise ValueError(f"{self.type} is not a format of four bits")

    def packed(self, part: Part = WHOLE) -> Quantized:
        """As `Stored`."""
        return stacked([self.take(run) for run in _runs(self.shape, part)])


def _loaded(
    shape: tuple[int, int], dequantize: Callable[[range], torch.Tensor], dtype: torch.dtype, part: Part
) -> torch.Tensor:
    runs = _runs(shape, part)
    columns = range(shape[1]) if part.columns is None else part.columns
    out = torch.empty(sum(map(len, runs)), len(columns), dtype=dtype)
    at = 0
    for piece in _pieces(runs, shape[1]):
        out[at : at + len(piece)] = dequantize(piece)[:, columns.start : columns.stop]
        at += len(piece)
    return out


def _runs(shape: tuple[int, int], part: Part) -> tuple[range, ...]:
    return (range(shape[0]),) if part.rows is None else part.rows


def _pieces(runs: tuple[range, ...], columns: int) -> Iterator[range]:
    step = max(1, _WEIGHTS // columns // _ROWS) * _ROWS
    for run in runs:
        for start in range(run.start, run.stop, step):
            yield range(start, min(start + step, run.stop))

"""What every weight file has in common: tensors that lie on disk in some format until they are asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from backends.quantization.gguf import FORMATS, FOUR_BITS, columns_of, dequantize
from backends.quantization.int4 import FourBits, kept, whole
from backends.quantization.stacks import Quantized

# Floating point; four bits, which the kernels for them hold exactly; integers of eight bits and floating point of eight
# bits, which those of GPUs hold exactly; other small numbers.
Kind = Literal["whole", "four", "eight", "float8", "small"]


class CheckpointError(ValueError):
    """A model file is missing, damaged, or of a kind that is not read; the message names file and reason."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a tensor: the rows of `rows`, run below run, and of these the `columns`; None: all."""

    rows: tuple[range, ...] | None = None
    columns: range | None = None


WHOLE = Part()


class Stored(Protocol):
    """A tensor on disk, of `shape`, in the format `type`."""

    @property
    def type(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def kind(self) -> Kind: ...

    def load(self, dtype: torch.dtype, part: Part = WHOLE) -> torch.Tensor:
        """On the CPU. It may be a view of the file: not to be written to. Raises ValueError for what cannot be read."""
        ...

    def four_bits(self, part: Part = WHOLE) -> FourBits:
        """Rows of it, exactly those of the file where `kind` is "four", else rounded."""
        ...

    def packed(self, part: Part = WHOLE) -> Quantized:
        """Rows of it as they lie in the file, where `kind` is neither "whole" nor "small"."""
        ...


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor on disk. `read` maps its bytes: uint8 [*shape[:-1], bytes of a row], not to be written to."""

    type: str  # one of `backends.quantization.gguf.FORMATS`, or what the file says
    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]

    @property
    def kind(self) -> Kind:
        if self.type in FOUR_BITS:
            return "four"
        return "whole" if self.type in FORMATS and FORMATS[self.type].expand is None else "small"

    def is_smaller_than(self, dtype: torch.dtype) -> bool:
        """Whether it takes less room than the same numbers of `dtype`; False for what cannot be loaded."""
        format = FORMATS.get(self.type)
        return format is not None and format.bytes < format.weights * dtype.itemsize

    def load(self, dtype: torch.dtype, part: Part = WHOLE) -> torch.Tensor:
        """As `Stored`; without a copy where it can be."""
        raw = rows_of(self.read(), part)
        if part.columns is None:
            return dequantize(raw, self.type, dtype)
        return columns_of(raw, self.type, part.columns, dtype)

    def four_bits(self, part: Part = WHOLE) -> FourBits:
        """As `Stored`."""
        return (kept if self.kind == "four" else whole)(rows_of(self.read(), part), self.type)

    def packed(self, part: Part = WHOLE) -> Quantized:
        """As `Stored`."""
        return self.four_bits(part)


def rows_of(raw: torch.Tensor, part: Part) -> torch.Tensor:
    """A view where it can be."""
    if part.rows is None:
        return raw
    runs = [raw[run.start : run.stop] for run in part.rows]
    return runs[0] if len(runs) == 1 else torch.cat(runs)

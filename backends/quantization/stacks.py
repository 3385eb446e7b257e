"""Quantised weights of one kind, rows below rows: several projections of the same inputs as one."""

from collections.abc import Sequence
from typing import cast

import torch

from backends.quantization import grouped, int4
from backends.quantization.grouped import Grouped
from backends.quantization.int4 import FourBits
from backends.quantization.packing.fp8 import Float8

Quantized = FourBits | Grouped | Float8


def stacked(parts: Sequence[Quantized]) -> Quantized:
    """Raises ValueError for parts that differ in more than their rows: kinds, bits, groups, the order of columns."""
    kinds = {type(part) for part in parts}
    if kinds == {FourBits}:
        return int4.stacked(cast(Sequence[FourBits], parts))
    if kinds == {Grouped}:
        return grouped.stacked(cast(Sequence[Grouped], parts))
    if kinds == {Float8}:
        return _stacked_floats(cast(Sequence[Float8], parts))
    raise ValueError(
        f"weights of different kinds cannot be stacked: {sorted(kind.__name__ for kind in kinds)}"
    )


def stackable(parts: Sequence[Quantized]) -> bool:
    """Whether `stacked` takes them; a row of each tells."""
    try:
        stacked(parts)
    except ValueError:
        return False
    return True


def _stacked_floats(parts: Sequence[Float8]) -> Float8:
    """Each row has its own scales in what comes out."""
    if len({part.scales.shape[1] for part in parts}) > 1:
        raise ValueError("8-bit floats with scales for different columns cannot be stacked")
    each = [part.by_row() for part in parts]
    values = torch.cat([part.values.view(torch.uint8) for part in each]).view(torch.float8_e4m3fn)
    return Float8(values, torch.cat([part.scales for part in each]), each[0].block)

"""How the weights of a model are kept: what is asked for, and what suits the tensors of a file."""

from collections.abc import Collection
from typing import Literal

from backends.instructions import cpu_has_avx2
from backends.models.stored import Kind
from backends.quantization.int4 import GROUP

Quantization = Literal["none", "auto", "int8", "int4"]  # what is asked for
Format = Literal["none", "int8", "int4"]  # of one linear; none: as the model computes


def possible(asked: Quantization, device: str) -> Quantization:
    """What a device can do of it: `auto` means none where there is no kernel. `device`: cpu, cuda.

    Raises ValueError for what was asked for by name and cannot be.
    """
    if asked == "none":
        return asked
    has_four_bits = device != "cpu" or cpu_has_avx2()
    if asked == "auto":
        return asked if has_four_bits else "none"
    if asked == "int4" and not has_four_bits:
        raise ValueError("quantization: int4 needs a CPU with AVX2; int8 runs on any")
    return asked


def suited(asked: Quantization, kinds: Collection[Kind], columns: int) -> Format:
    """The format of one linear whose rows lie in the file as `kinds`.

    `auto` and `int4`: what has four bits in the file keeps them, other small numbers become int8. Whole numbers stay
    as they are with `auto`; `int4` rounds them.
    """
    if asked in ("none", "int8"):
        return asked
    if set(kinds) == {"four"}:
        return "int4"
    if set(kinds) == {"whole"}:
        return "none" if asked == "auto" else "int8" if columns % GROUP else "int4"
    return "int8"

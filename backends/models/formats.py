"""How the weights of a model are kept: what is asked for, and what suits the tensors of a file."""

from collections.abc import Collection
from typing import Literal

from backends.instructions import cpu_has_avx2
from backends.quantization.gguf import FORMATS, FOUR_BITS
from backends.quantization.int4 import GROUP

Quantization = Literal["none", "auto", "int8", "int4"]  # what is asked for
Format = Literal["none", "int8", "int4"]  # of one linear; none: as the model computes

_WHOLE = frozenset(type for type, format in FORMATS.items() if format.expand is None)


def possible(asked: Quantization, device: str) -> Quantization:
    """What a device can do of it: `auto` means none where there is no kernel. `device`: cpu, cuda.

    Raises ValueError for what was asked for by name and cannot be.
    """
    if asked == "none":
        return asked
    if asked == "auto":
        return asked if device == "cpu" and cpu_has_avx2() else "none"
    if device != "cpu":
        raise ValueError(f"quantization: {asked} is for CPUs, not for {device}")
    if asked == "int4" and not cpu_has_avx2():
        raise ValueError("quantization: int4 needs a CPU with AVX2; int8 runs on any")
    return asked


def suited(asked: Quantization, types: Collection[str], columns: int) -> Format:
    """The format of one linear whose rows lie in the file as `types`.

    `auto` and `int4`: what has four bits in the file keeps them, other small integers become int8. Whole numbers stay
    as they are with `auto`; `int4` rounds them.
    """
    if asked in ("none", "int8"):
        return asked
    if FOUR_BITS.keys() >= set(types):
        return "int4"
    if set(types) <= _WHOLE:
        return "none" if asked == "auto" else "int8" if columns % GROUP else "int4"
    return "int8"

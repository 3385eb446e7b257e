"""How the weights of a model are kept: what is asked for, what lies in its files, and what the device can do."""

from collections.abc import Collection
from typing import get_args

from backends.instructions import cpu_has_avx2
from backends.kernels.products import FLOAT8_SINCE
from backends.layers.linear import Format
from backends.models.stored import Kind
from backends.quantization.int4 import GROUP
from backends.wire import Quantization

Capability = tuple[int, int] | None  # of a GPU; None: a CPU

# What kernels for GPUs multiply by as it lies in a file, and what may be asked for beside it.
_PACKED: dict[Kind, frozenset[Quantization]] = {
    "four": frozenset({"none", "auto", "int4"}),
    "eight": frozenset({"none", "auto", "int8", "w8a8"}),
    "float8": frozenset({"none", "auto", "fp8"}),
}


def possible(asked: Quantization, device: str) -> Quantization:
    """What a device can do of it: `auto` means none where there is no kernel. `device`: cpu, cuda.

    Raises ValueError for what was asked for by name and cannot be.
    """
    if asked not in get_args(Quantization):
        raise ValueError(f"quantization: is none of {', '.join(sorted(get_args(Quantization)))}: {asked}")
    if device != "cpu" or asked in ("none", "int8"):
        return asked
    if asked == "fp8":
        raise ValueError("quantization: fp8 needs a GPU; int8 runs on any device")
    if asked == "w8a8":
        return "int8"  # which rounds inputs on CPUs anyway
    if cpu_has_avx2():
        return asked
    if asked == "int4":
        raise ValueError("quantization: int4 needs a CPU with AVX2; int8 runs on any")
    return "none"


def suited(
    asked: Quantization, kinds: Collection[Kind], columns: int, capability: Capability = None
) -> Format:
    """The format of one linear whose rows lie in the file as `kinds`. Raises ValueError for what contradicts the file.

    What a GPU can multiply by stays as it is in the file, whatever is asked for, and nothing else may be asked for by
    name. Everything else on a GPU, and all on a CPU: `auto` and `int4` keep what has four bits in the file, other
    small numbers become int8. Whole numbers stay as they are with `auto`; `int4` rounds them.
    """
    if capability is not None and is_kept(kinds, capability):
        (kind,) = set(kinds)
        if asked not in _PACKED[kind]:
            raise ValueError(f"quantization: {asked} contradicts the file; auto keeps what that has")
        if kind == "four":
            return "int4"
        return _float8(capability) if kind == "float8" else "w8a8" if asked == "w8a8" else "int8"
    if asked == "fp8":
        return _float8(capability)
    if asked == "none" or asked == "int8" or asked == "w8a8":
        return asked
    if set(kinds) == {"four"}:
        return "int4"
    if set(kinds) == {"whole"}:
        return "none" if asked == "auto" else "int8" if columns % GROUP else "int4"
    return "int8"


def is_kept(kinds: Collection[Kind], capability: Capability) -> bool:
    """Whether a linear is multiplied by what lies in the file, rather than by what that stands for."""
    return capability is not None and len(set(kinds)) == 1 and set(kinds) <= _PACKED.keys()


def _float8(capability: Capability) -> Format:
    """Checkpoints of this kind are made for inputs of float8, which not all GPUs multiply."""
    return "fp8" if capability is not None and capability >= FLOAT8_SINCE else "fp8a16"

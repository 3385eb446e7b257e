"""GPTQ's layout (github.com/AutoGPTQ/AutoGPTQ and github.com/ModelCloud/GPTQModel, `nn_modules/qlinear`).

    qweight  int32 [in · bits / 32, out]    a word holds neighbouring columns of one output channel
    qzeros   int32 [groups, out · bits / 32]    a word holds neighbouring output channels
    scales   float16 [groups, out]
    g_idx    int32 [in]    the group of each column

All from the lowest bits on. A weight is (integer − zero) · scale. Version 1 ("gptq") stores zero − 1 in the bits of a
zero, version 2 ("gptq_v2") stores the zero. Some files that say version 1 hold version 2: `stored_version` tells. In
version 1 a zero of 0 is stored as all ones; GPTQModel subtracts from whole words, and so borrows from the next zero.
"""

from collections.abc import Mapping

import torch

from backends.quantization.grouped import Grouped
from backends.quantization.packing.words import pack_words, unpack_words

NAMES = ("qweight", "qzeros", "scales", "g_idx")


def pack(weight: Grouped, version: int = 1) -> dict[str, torch.Tensor]:
    """The tensors of `NAMES`. Raises ValueError for what the layout cannot hold.

    In version 1 that is a zero of 0: 0 − 1 is read as 15, as 16 or with a carry into its neighbour.
    """
    if version == 1 and not weight.zeros.all():
        raise ValueError("GPTQ's version 1 cannot hold zeros of 0; version 2 can")
    in_a_word = 32 // weight.bits
    if any(size % in_a_word for size in weight.integers.shape):
        raise ValueError(f"GPTQ's layout holds multiples of {in_a_word}, not {list(weight.integers.shape)}")
    zeros = weight.zeros - 1 if version == 1 else weight.zeros
    return {
        "qweight": pack_words(weight.integers, weight.bits).T.contiguous(),
        "qzeros": pack_words(zeros.T.contiguous(), weight.bits),
        "scales": weight.scales.T.half().contiguous(),
        "g_idx": _column_groups(weight).to(torch.int32),
    }


def unpack(
    tensors: Mapping[str, torch.Tensor], bits: int, version: int = 1, *, borrows: bool = False
) -> Grouped:
    """The reverse of `pack`; without g_idx, groups are neighbours. `borrows`: the writer of version 1 did, as GPTQModel
    does. Raises ValueError for tensors that do not fit."""
    integers = unpack_words(tensors["qweight"].T, bits)
    words, highest = tensors["qzeros"], (1 << bits) - 1
    if version == 1 and borrows:
        words = words + 0xFFFFFFFF // highest  # a one in each zero
    zeros = unpack_words(words, bits, len(integers)).T
    if version == 1 and not borrows:
        zeros = (zeros + 1) & highest
    scales = tensors["scales"].T
    listed = tensors.get("g_idx")
    groups = None if listed is None else _unless_neighbours(listed.long(), scales.shape[1])
    return Grouped(bits, integers, scales, zeros, groups)


def stored_version(qzeros: torch.Tensor, bits: int) -> int | None:
    """The version by the zeros of symmetric weights, which are all in the middle; None: they are not symmetric."""
    stored = unpack_words(qzeros, bits)
    value, middle = int(stored[0, 0]), 1 << (bits - 1)
    if not (stored == value).all():
        return None
    return {middle - 1: 1, middle: 2}.get(value)


def _column_groups(weight: Grouped) -> torch.Tensor:
    if weight.column_groups is not None:
        return weight.column_groups
    return _neighbours(weight.integers.shape[1], weight.scales.shape[1])


def _neighbours(columns: int, groups: int) -> torch.Tensor:
    return torch.arange(columns) // max(1, columns // groups)


def _unless_neighbours(listed: torch.Tensor, groups: int) -> torch.Tensor | None:
    return None if torch.equal(listed, _neighbours(len(listed), groups)) else listed

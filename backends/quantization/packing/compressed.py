"""The integers of compressed-tensors (github.com/vllm-project/compressed-tensors, `compressors`).

"pack-quantized":

    weight_packed      int32 [out, in · bits / 32]    a word holds neighbouring columns, from the lowest bits on
    weight_scale       [out, groups]; one group: a scale for a channel
    weight_shape       int64 [2]: out, in
    weight_zero_point  int32 [out · bits / 32, groups]    a word holds neighbouring rows; not for symmetric weights;
                       int8 [out, groups] in files of early versions
    weight_g_idx       int32 [in]: the group of each column, where that is not its place

"int-quantized":

    weight             int8 [out, in]
    weight_scale       [out, groups] or one for all
    weight_zero_point  int8 like the scales; not for symmetric weights

Integers and zero points are signed; in words, 2^(bits−1) is added to them. A weight is (integer − zero) · scale.
"""

from collections.abc import Mapping

import torch

from backends.quantization.grouped import Grouped, middle, signed_to_codes
from backends.quantization.packing.words import pack_words, unpack_words

NAMES = ("weight_packed", "weight_scale", "weight_shape")
ZERO_POINT, COLUMN_GROUPS = "weight_zero_point", "weight_g_idx"  # there only where they say something
NAMES_OF_BYTES = ("weight", "weight_scale")


def pack(weight: Grouped, *, symmetric: bool) -> dict[str, torch.Tensor]:
    """The tensors of "pack-quantized". Raises ValueError for a `symmetric` weight whose zeros are not in the middle."""
    tensors = {
        "weight_packed": pack_words(weight.integers, weight.bits),
        "weight_scale": weight.scales.contiguous(),
        "weight_shape": torch.tensor(weight.integers.shape),
    }
    if symmetric:
        _refuse_asymmetric(weight)
    else:
        tensors[ZERO_POINT] = pack_words(weight.zeros.T.contiguous(), weight.bits).T.contiguous()
    if weight.column_groups is not None:
        tensors[COLUMN_GROUPS] = weight.column_groups.to(torch.int32)
    return tensors


def unpack(tensors: Mapping[str, torch.Tensor], bits: int) -> Grouped:
    """The reverse. Raises ValueError for tensors that do not fit one another."""
    rows, columns = tensors["weight_shape"].tolist()
    integers = unpack_words(tensors["weight_packed"], bits, columns)
    scales = tensors["weight_scale"].reshape(rows, -1)
    zeros = middle(rows, scales.shape[1], bits)
    if ZERO_POINT in tensors:
        points = tensors[ZERO_POINT]
        in_words = points.dtype == torch.int32
        zeros = unpack_words(points.T, bits, rows).T if in_words else signed_to_codes(points, bits)
    groups = tensors.get(COLUMN_GROUPS)
    return Grouped(bits, integers, scales, zeros, None if groups is None else groups.long())


def pack_bytes(weight: Grouped, *, symmetric: bool) -> dict[str, torch.Tensor]:
    """The tensors of "int-quantized". Raises ValueError as `pack` does."""
    tensors = {"weight": _signed(weight.integers, weight.bits), "weight_scale": weight.scales.contiguous()}
    if symmetric:
        _refuse_asymmetric(weight)
    else:
        tensors[ZERO_POINT] = _signed(weight.zeros, weight.bits)
    return tensors


def unpack_bytes(tensors: Mapping[str, torch.Tensor]) -> Grouped:
    """The reverse. Eight bits, whatever part of them is used: zero and integers have the same offset."""
    weight = tensors["weight"]
    rows = len(weight)
    scales = tensors["weight_scale"]
    scales = scales.expand(rows, 1) if scales.numel() == 1 else scales.reshape(rows, -1)
    zeros = middle(rows, scales.shape[1], 8)
    if ZERO_POINT in tensors:
        zeros = signed_to_codes(tensors[ZERO_POINT], 8).reshape(-1, scales.shape[1]).expand(rows, -1)
    return Grouped(8, signed_to_codes(weight, 8), scales, zeros)


def _signed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    return (codes.to(torch.int16) - (1 << (bits - 1))).to(torch.int8)


def _refuse_asymmetric(weight: Grouped) -> None:
    if not (weight.zeros == 1 << (weight.bits - 1)).all():
        raise ValueError("symmetric weights have their zeros in the middle, these do not")

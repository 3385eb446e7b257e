"""GGUF's block formats to floating point, in torch.

A block holds 32 or 256 neighbouring weights of one row as small integers with shared scales. The layouts are those
of ggml (`ggml-common.h`); results in float32 equal `gguf.quants.dequantize` bit for bit, which is why a product
and a difference stay two operations: a fused multiply-add rounds once less.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

# Weights expanded at a time: what lies in between stays in the caches, and torch runs operations of this size on the
# calling thread. Spreading them over OpenMP threads was measured 5 times slower on a machine with other work.
CHUNK = 1 << 15


Groups = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # integers, scales, minima


@dataclass(frozen=True, slots=True)
class Format:
    """`expand` turns uint8 [blocks, bytes] into float32 [blocks, weights]; None: plain numbers of type `dtype`."""

    weights: int
    bytes: int
    dtype: torch.dtype | None = None
    expand: Callable[[torch.Tensor], torch.Tensor] | None = None


def dequantize(raw: torch.Tensor, type: str, dtype: torch.dtype) -> torch.Tensor:
    """uint8 [..., bytes of a row] in the format `type` to [..., weights of a row] of `dtype`.

    A format of plain numbers in the wanted dtype comes back without a copy. Raises ValueError for a format
    that is not in FORMATS, and for rows that do not hold whole blocks.
    """
    format = _format(type)
    if raw.shape[-1] % format.bytes:
        raise ValueError(f"rows of {raw.shape[-1]} bytes do not hold whole {type} blocks of {format.bytes}")
    if format.expand is None:
        return raw.view(format.dtype).to(dtype)
    blocks = raw.reshape(-1, format.bytes)
    out = torch.empty(len(blocks), format.weights, dtype=dtype)
    step = CHUNK // format.weights
    for start in range(0, len(blocks), step):
        out[start : start + step] = format.expand(blocks[start : start + step])
    return out.view(*raw.shape[:-1], raw.shape[-1] // format.bytes * format.weights)


def columns_of(raw: torch.Tensor, type: str, columns: range, dtype: torch.dtype) -> torch.Tensor:
    """As `dequantize`, the weights `columns` of each row. Only the blocks that hold them are read."""
    format = _format(type)
    first, last = columns.start // format.weights, -(-columns.stop // format.weights)
    expanded = dequantize(raw[..., first * format.bytes : last * format.bytes], type, dtype)
    before = first * format.weights
    return expanded[..., columns.start - before : columns.stop - before].contiguous()


def row_bytes(type: str, weights: int) -> int:
    """Bytes of a row of so many weights. Raises ValueError as `dequantize` does."""
    format = _format(type)
    if weights % format.weights:
        raise ValueError(f"rows of {weights} weights are not whole {type} blocks of {format.weights}")
    return weights // format.weights * format.bytes


def groups_of_four_bits(raw: torch.Tensor, type: str) -> Groups:
    """uint8 [..., bytes of a row] in one of FOUR_BITS: integers of 0 … 15 and, for each 32 of them, float32 scale and
    minimum; a weight is integer · scale + minimum. Raises ValueError for another `type`."""
    if type not in FOUR_BITS:
        raise ValueError(f"{type} is not a format of four bits; those are {', '.join(FOUR_BITS)}")
    integers, scales, minima = FOUR_BITS[type](raw.reshape(-1, _format(type).bytes))
    return integers.contiguous(), scales.contiguous(), minima.contiguous()


def _format(type: str) -> Format:
    if type not in FORMATS:
        raise ValueError(f"tensor type {type} is not supported; supported are {', '.join(FORMATS)}")
    return FORMATS[type]


def _half(field: torch.Tensor) -> torch.Tensor:
    """uint8 [n, 2] to float32 [n, 1]."""
    return field.contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor, width: int) -> torch.Tensor:
    """uint8 [n, w] to [n, 2w]: of each run of `width` bytes first the low halves, then the high halves."""
    runs = packed.reshape(len(packed), -1, 1, width)
    return torch.cat((runs & 15, runs >> 4), dim=2).view(len(packed), -1)


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [n, 4], a bit per weight, to [n, 32] of 0 or 16."""
    bits = packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)
    return ((bits & 1) << 4).view(len(packed), 32)


def _four_bits_0(blocks: torch.Tensor) -> Groups:
    scales = _half(blocks[:, :2])
    return _nibbles(blocks[:, 2:], 16), scales, -8 * scales


def _four_bits_1(blocks: torch.Tensor) -> Groups:
    return _nibbles(blocks[:, 4:], 16), _half(blocks[:, :2]), _half(blocks[:, 2:4])


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    weights = _nibbles(blocks[:, 2:], 16).view(torch.int8) - 8
    return weights.float().mul_(_half(blocks[:, :2]))


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    weights, scales, minima = _four_bits_1(blocks)
    return weights.float().mul_(scales).add_(minima)


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    weights = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return (weights.view(torch.int8) - 16).float().mul_(_half(blocks[:, :2]))


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    weights = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return weights.float().mul_(_half(blocks[:, :2])).add_(_half(blocks[:, 2:4]))


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks[:, :2]))


def _scales_and_minima(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The head of a Q4_K or Q5_K block, uint8 [n, 16], to float32 scales and minima [n, 8, 1] of its eight groups.

    Behind the two halves of the whole block lie eight six-bit scales and eight six-bit minima in twelve bytes:
    the first four of each in the low six bits of bytes 0 to 3 and 4 to 7; the last four have their low halves
    in bytes 8 to 11, their two high bits on top of bytes 0 to 3 and 4 to 7.
    """
    first, second, low = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (low & 15) | ((first >> 2) & 48)), dim=1)
    minima = torch.cat((second & 63, (low >> 4) | ((second >> 2) & 48)), dim=1)
    scale, minimum = _half(blocks[:, :2]), _half(blocks[:, 2:4])
    return (scale * scales.float()).unsqueeze(-1), (minimum * minima.float()).unsqueeze(-1)


def _four_bits_k(blocks: torch.Tensor) -> Groups:
    scales, minima = _scales_and_minima(blocks)
    return _nibbles(blocks[:, 16:], 32), scales.squeeze(-1), -minima.squeeze(-1)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    weights, scales, minima = _four_bits_k(blocks)
    groups = weights.view(-1, 8, 32).float()
    return groups.mul_(scales.unsqueeze(-1)).add_(minima.unsqueeze(-1)).view(-1, 256)


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = _scales_and_minima(blocks)
    group = torch.arange(8, dtype=torch.uint8).view(8, 1)
    high = ((blocks[:, 16:48].unsqueeze(1) >> group) & 1) << 4
    weights = (_nibbles(blocks[:, 48:], 32).view(-1, 8, 32) | high).float()
    return weights.mul_(scales).sub_(minima).view(-1, 256)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    low = _nibbles(blocks[:, :128], 64).view(-1, 2, 4, 32)
    weights = ((low | (high << 4)).view(torch.int8) - 32).view(-1, 16, 16).float()
    scales = _half(blocks[:, 208:]) * blocks[:, 192:208].view(torch.int8).float()
    return weights.mul_(scales.unsqueeze(-1)).view(-1, 256)


FORMATS = {
    "F32": Format(1, 4, dtype=torch.float32),
    "F16": Format(1, 2, dtype=torch.float16),
    "BF16": Format(1, 2, dtype=torch.bfloat16),
    "Q4_0": Format(32, 18, expand=_q4_0),
    "Q4_1": Format(32, 20, expand=_q4_1),
    "Q5_0": Format(32, 22, expand=_q5_0),
    "Q5_1": Format(32, 24, expand=_q5_1),
    "Q8_0": Format(32, 34, expand=_q8_0),
    "Q4_K": Format(256, 144, expand=_q4_k),
    "Q5_K": Format(256, 176, expand=_q5_k),
    "Q6_K": Format(256, 210, expand=_q6_k),
}

FOUR_BITS: dict[str, Callable[[torch.Tensor], Groups]] = {
    "Q4_0": _four_bits_0,
    "Q4_1": _four_bits_1,
    "Q4_K": _four_bits_k,
}

"""Weights of 8-bit floating point (arXiv:2209.05433, E4M3 without infinities) with a scale for each piece.

    weight        float8_e4m3fn [out, in]
    weight_scale  one number, [1] or [out, 1]
    weight_scale_inv  [⌈out / 128⌉, ⌈in / 128⌉], for pieces of 128 x 128

A weight is value · scale, with either name: "inv" is what the scale is to the quantiser. The first two are those of
compressed-tensors ("float-quantized") and of vLLM, the third is DeepSeek-V3's (arXiv:2412.19437, section 3.3).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

LARGEST = 448.0  # of E4M3
BLOCK = 128
SCALE, BLOCK_SCALE = "weight_scale", "weight_scale_inv"


@dataclass(frozen=True, slots=True)
class Float8:
    """`values` float8_e4m3fn [out, in]; `scales` of any floating type, [1, 1], [out, 1] or one for each `block`.

    `block`: rows and columns of a piece. Raises ValueError for scales that do not fit the values.
    """

    values: torch.Tensor
    scales: torch.Tensor
    block: tuple[int, int]

    def __post_init__(self) -> None:
        needed = tuple(-(-size // piece) for size, piece in zip(self.values.shape, self.block, strict=True))
        if self.scales.shape != needed:
            raise ValueError(
                f"{list(self.values.shape)} in pieces of {list(self.block)} needs scales {list(needed)}, "
                f"not {list(self.scales.shape)}"
            )

    def by_row(self) -> "Float8":
        """The same weights, with scales for one row each."""
        rows = len(self.values)
        return Float8(self.values, self.scales.repeat_interleave(self.block[0], 0)[:rows], (1, self.block[1]))

    def dequantized(self) -> torch.Tensor:
        """float32 [out, in]."""
        rows, columns = self.values.shape
        scales = self.scales.float()
        if self.block[1] < columns:
            scales = scales.repeat_interleave(self.block[1], 1)[:, :columns]
        if self.block[0] < rows:
            scales = scales.repeat_interleave(self.block[0], 0)[:rows]
        return self.values.float().mul_(scales)


def rounded(weight: torch.Tensor, block: tuple[int, int]) -> Float8:
    """Whole weights [out, in] to the nearest, with the scale of each piece such that its largest weight is 448."""
    rows, columns = weight.shape
    block = min(block[0], rows), min(block[1], columns)
    filled = torch.nn.functional.pad(weight.float(), (0, -columns % block[1], 0, -rows % block[0]))
    pieces = filled.unflatten(1, (-1, block[1])).unflatten(0, (-1, block[0]))
    scales = pieces.abs().amax((1, 3)).div(LARGEST).clamp(min=1e-12)
    values = (pieces / scales[:, None, :, None]).clamp(-LARGEST, LARGEST)
    return Float8(values.flatten(2).flatten(0, 1)[:rows, :columns].to(torch.float8_e4m3fn), scales, block)


def pack(weight: Float8) -> dict[str, torch.Tensor]:
    """The tensors. Raises ValueError for pieces that no reader knows."""
    rows, columns = weight.values.shape
    whole_rows, one_row = weight.block[1] >= columns, weight.block[0] == 1
    if whole_rows and weight.block[0] >= rows and not one_row:
        return {"weight": weight.values, SCALE: weight.scales.reshape(1)}
    if whole_rows and one_row:
        return {"weight": weight.values, SCALE: weight.scales}
    if all(piece in (BLOCK, size) for piece, size in zip(weight.block, weight.values.shape, strict=True)):
        return {"weight": weight.values, BLOCK_SCALE: weight.scales}
    raise ValueError(
        f"no reader knows pieces of {list(weight.block)}; those of {BLOCK} x {BLOCK}, rows and all do"
    )


def unpack(tensors: Mapping[str, torch.Tensor], block: tuple[int, int] = (BLOCK, BLOCK)) -> Float8:
    """The reverse; `block`: of the pieces of `weight_scale_inv`, or of scales with more than one column. Raises
    ValueError for scales that do not fit."""
    values = tensors["weight"]
    rows, columns = values.shape
    scales = tensors[BLOCK_SCALE] if BLOCK_SCALE in tensors else tensors[SCALE]
    if BLOCK_SCALE in tensors or scales.dim() == 2 and scales.shape[1] > 1:
        return Float8(values, scales, block)
    if scales.numel() == 1:
        return Float8(values, scales.reshape(1, 1), (max(rows, 1), columns))
    return Float8(values, scales.reshape(-1, 1), (1, columns))

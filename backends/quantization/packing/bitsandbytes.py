"""The weights of bitsandbytes (github.com/bitsandbytes-foundation/bitsandbytes, `functional.py`, `nn/modules.py`).

4 bits (NF4, arXiv:2305.14314, or FP4), blocks of neighbours of the flattened weight:

    weight             uint8 [out · in / 2, 1]    two indices into quant_map, the first in the high half
    weight.quant_map   float32 [16]    the values that indices stand for, within ±1
    weight.absmax      float32 [blocks]    what the values of a block are multiplied by; or, if nested, uint8 [blocks]
    weight.nested_quant_map    float32 [256]    the values of nested indices
    weight.nested_absmax       float32 [⌈blocks / 256⌉]    what these are multiplied by, before an offset is added
    weight.quant_state.bitsandbytes__nf4 (or fp4)    JSON as uint8: blocksize, shape, nested_blocksize, nested_offset

8 bits:

    weight  int8 [out, in]
    SCB     float32 [out]    the largest of each row: a weight is integer · SCB / 127
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

# Quantiles of the normal law, scaled to ±1, with a zero among them: table of arXiv:2305.14314, appendix E.
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
BLOCK = 64
STATE = "weight.quant_state.bitsandbytes__"  # followed by the type
TYPES = ("nf4", "fp4")
_LARGEST = 127


@dataclass(frozen=True, slots=True)
class Indexed:
    """`indices` uint8 [out, in] into `values` float32 [16]; of `block` neighbours of the flattened weight each is
    multiplied by one of `largest`, float32 [blocks]."""

    indices: torch.Tensor
    values: torch.Tensor
    largest: torch.Tensor
    block: int

    def __post_init__(self) -> None:
        blocks = -(-self.indices.numel() // self.block)
        if self.largest.shape != (blocks,):
            raise ValueError(f"{blocks} blocks of {self.block} do not fit {len(self.largest)} scales")

    def dequantized(self) -> torch.Tensor:
        """float32 [out, in]."""
        values = self.values[self.indices.flatten().int()]
        scales = self.largest.repeat_interleave(self.block)[: len(values)]
        return values.mul_(scales).view(self.indices.shape)


def rounded(weight: torch.Tensor, block: int = BLOCK) -> Indexed:
    """Whole weights [out, in] to the nearest of NF4's values."""
    flat = weight.float().flatten()
    filled = torch.nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
    largest = filled.abs().amax(1)
    values = torch.tensor(NF4)
    shares = (filled / largest.clamp(min=1e-38)[:, None]).flatten()[: len(flat)]
    indices = torch.bucketize(shares, (values[1:] + values[:-1]) / 2).to(torch.uint8)
    return Indexed(indices.view(weight.shape), values, largest, block)


def pack(weight: Indexed, dtype: str = "bfloat16") -> dict[str, torch.Tensor]:
    """The tensors of NF4, not nested. `dtype`: of the weights before, which readers give back."""
    high, low = weight.indices.flatten().view(-1, 2).T
    state = {
        "quant_type": "nf4",
        "blocksize": weight.block,
        "dtype": dtype,
        "shape": list(weight.indices.shape),
    }
    return {
        "weight": ((high << 4) | low).unsqueeze(1),
        "weight.absmax": weight.largest,
        "weight.quant_map": weight.values,
        f"{STATE}nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }


def unpack(tensors: Mapping[str, torch.Tensor]) -> Indexed:
    """The reverse, and of FP4 and nested scales too. Raises ValueError for tensors that do not fit one another."""
    state = state_of(tensors)
    packed = tensors["weight"].contiguous().view(torch.uint8).flatten()
    shape = state["shape"]
    indices = torch.stack((packed >> 4, packed & 15), dim=1).flatten()
    rows, columns = shape
    indices = indices[: rows * columns].view(rows, columns)
    return Indexed(indices, tensors["weight.quant_map"].float(), _largest(tensors, state), state["blocksize"])


def state_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """What the JSON says. Raises ValueError where it is missing or does not say what is needed."""
    found = [tensors[f"{STATE}{type}"] for type in TYPES if f"{STATE}{type}" in tensors]
    if len(found) != 1:
        raise ValueError(f"{STATE}{TYPES[0]} is missing")
    state = json.loads(bytes(found[0].tolist()))
    needed = ["shape", "blocksize"]
    if "weight.nested_absmax" in tensors:
        needed += ["nested_blocksize", "nested_offset"]
    for name in needed:
        if name not in state:
            raise ValueError(f"quant_state: {name} is missing")
    return dict(state)


def _largest(tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> torch.Tensor:
    largest = tensors["weight.absmax"]
    if "weight.nested_absmax" not in tensors:
        return largest.float()
    values = tensors["weight.nested_quant_map"].float()[largest.int()]
    scales = tensors["weight.nested_absmax"].float().repeat_interleave(state["nested_blocksize"])
    return values.mul_(scales[: len(values)]).add_(state["nested_offset"])


def unpack_bytes(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Of 8 bits: float32 [out, in]."""
    return tensors["weight"].float().mul_(tensors["SCB"].float()[:, None] / _LARGEST)

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
    multiplied by one of `largest`, float32 [blocks]. `before`: so many of the first block are not among them."""

    indices: torch.Tensor
    values: torch.Tensor
    largest: torch.Tensor
    block: int
    before: int = 0

    def dequantized(self) -> torch.Tensor:
        """float32 [out, in]."""
        values = self.values[self.indices.flatten().int()]
        scales = self.largest.repeat_interleave(self.block)[self.before : self.before + len(values)]
        return values.mul_(scales).view(self.indices.shape)


@dataclass(frozen=True, slots=True)
class State:
    """What the JSON beside a weight of four bits says."""

    type: str  # of TYPES
    shape: tuple[int, int]
    block: int
    nested_block: int | None  # None: the scales are whole
    nested_offset: float


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


def unpack(tensors: Mapping[str, torch.Tensor], rows: range | None = None) -> Indexed:
    """The reverse, or some `rows` of it, and of FP4 and nested scales too. Raises ValueError for tensors that do not
    fit one another."""
    state = state_of(tensors)
    height, columns = state.shape
    if -(-height * columns // state.block) != len(tensors["weight.absmax"]):
        raise ValueError(
            f"{len(tensors['weight.absmax'])} scales do not fit {height} x {columns} weights in blocks of {state.block}"
        )
    rows = range(height) if rows is None else rows
    wanted = range(rows.start * columns, rows.stop * columns)
    blocks = range(wanted.start // state.block, -(-wanted.stop // state.block))
    return Indexed(
        _indices(tensors["weight"], wanted).view(len(rows), columns),
        tensors["weight.quant_map"].float(),
        _largest(tensors, state, blocks),
        state.block,
        wanted.start - blocks.start * state.block,
    )


def _indices(weight: torch.Tensor, wanted: range) -> torch.Tensor:
    packed = weight.contiguous().view(torch.uint8).flatten()[wanted.start // 2 : -(-wanted.stop // 2)]
    before = wanted.start % 2
    return torch.stack((packed >> 4, packed & 15), dim=1).flatten()[before : before + len(wanted)]


def _largest(tensors: Mapping[str, torch.Tensor], state: State, blocks: range) -> torch.Tensor:
    largest = tensors["weight.absmax"][blocks.start : blocks.stop]
    if state.nested_block is None:
        return largest.float()
    values = tensors["weight.nested_quant_map"].float()[largest.int()]
    outer = torch.arange(blocks.start, blocks.stop) // state.nested_block
    return values.mul_(tensors["weight.nested_absmax"].float()[outer]).add_(state.nested_offset)


def state_of(tensors: Mapping[str, torch.Tensor]) -> State:
    """What the JSON says. Raises ValueError where it is missing or broken."""
    found = [type for type in TYPES if f"{STATE}{type}" in tensors]
    if len(found) != 1:
        raise ValueError(f"{STATE}{TYPES[0]} is missing")
    try:
        said = json.loads(bytes(tensors[f"{STATE}{found[0]}"].tolist()))
        nested = "weight.nested_absmax" in tensors
        rows, columns = map(int, said["shape"])
        return State(
            found[0],
            (rows, columns),
            int(said["blocksize"]),
            int(said["nested_blocksize"]) if nested else None,
            float(said["nested_offset"]) if nested else 0.0,
        )
    except KeyError as error:
        raise ValueError(f"quant_state: {error.args[0]} is missing") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"quant_state: {error}") from None


def unpack_bytes(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Of 8 bits: float32 [out, in]."""
    return tensors["weight"].float().mul_(tensors["SCB"].float()[:, None] / _LARGEST)

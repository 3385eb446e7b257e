"""The formats of checkpoints, by name: what their config says, and how a weight is packed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import bitsandbytes.functional as bnb
import torch

from backends.quantization.grouped import Grouped
from backends.quantization.packing import awq, bitsandbytes, compressed, fp8, gptq

Tensors = dict[str, torch.Tensor]
Round = Callable[..., Grouped]


@dataclass(frozen=True)
class Case:
    """`pack`: how a weight becomes tensors, and what these stand for."""

    settings: Mapping[str, Any]
    pack: Callable[[torch.Tensor, Round], tuple[Tensors, torch.Tensor]]
    kept: str = "int4"  # by `auto` on a CPU
    on_a_gpu: str = "int4"  # without products of float8; empty: as whole numbers


def _awq(group: int) -> Case:
    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}

    def pack(weight: torch.Tensor, to_grouped: Round) -> tuple[Tensors, torch.Tensor]:
        grouped = to_grouped(weight, 4, group)
        return awq.pack(grouped), grouped.dequantized()

    return Case(settings, pack)


def _gptq(
    bits: int = 4,
    group: int = 64,
    *,
    version: int = 1,
    said: str = "gptq",
    ordered: bool = False,
    symmetric: bool = False,
) -> Case:
    settings = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": ordered, "sym": symmetric,
        "checkpoint_format": said,
    }  # fmt: skip

    def pack(weight: torch.Tensor, to_grouped: Round) -> tuple[Tensors, torch.Tensor]:
        grouped = to_grouped(weight, bits, None if group == -1 else group, symmetric=symmetric)
        if ordered:
            columns = weight.shape[1]
            order = torch.randperm(columns, generator=torch.Generator().manual_seed(columns))
            grouped = replace(grouped, column_groups=order // group)
        return gptq.pack(grouped, version), grouped.dequantized()

    is_four = bits <= 4 and (group == -1 or group % 32 == 0)
    return Case(
        settings, pack, "int4" if is_four else "int8", "int4" if is_four else "int8" if bits == 8 else ""
    )


def _scheme(format: str, activations: bool = False, **weights: Any) -> dict[str, Any]:
    inputs = (
        {"num_bits": 8, "dynamic": True, "strategy": "token", "type": weights["type"]}
        if activations
        else None
    )
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed",
    }  # fmt: skip


def _compressed(
    format: str, bits: int, group: int | None, symmetric: bool, *, zeros_in_bytes: bool = False
) -> Case:
    settings = _scheme(
        format, format == "int-quantized", num_bits=bits, type="int", symmetric=symmetric,
        strategy="group" if group else "channel", group_size=group,
    )  # fmt: skip

    def pack(weight: torch.Tensor, to_grouped: Round) -> tuple[Tensors, torch.Tensor]:
        grouped = to_grouped(weight, bits, group, symmetric=symmetric)
        write = compressed.pack if format == "pack-quantized" else compressed.pack_bytes
        tensors = write(grouped, symmetric=symmetric)
        if zeros_in_bytes:
            tensors[compressed.ZERO_POINT] = (grouped.zeros.int() - (1 << (bits - 1))).to(torch.int8)
        return tensors, grouped.dequantized()

    kept = "int4" if bits == 4 and format == "pack-quantized" else "int8"
    return Case(settings, pack, kept, kept)


def _float8(settings: Mapping[str, Any], block: tuple[int, int]) -> Case:
    def pack(weight: torch.Tensor, to_grouped: Round) -> tuple[Tensors, torch.Tensor]:
        rounded = fp8.rounded(weight, block)
        tensors = fp8.pack(rounded)
        if settings["quant_method"] == "compressed-tensors" and fp8.BLOCK_SCALE in tensors:
            tensors[fp8.SCALE] = tensors.pop(fp8.BLOCK_SCALE)
        return tensors, rounded.dequantized()

    return Case(settings, pack, "int8", "fp8 by inputs of 16 bits")


def _four_bits(type: str, nested: bool) -> Case:
    """As bitsandbytes packs it."""
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": type}

    def pack(weight: torch.Tensor, to_grouped: Round) -> tuple[Tensors, torch.Tensor]:
        packed, state = bnb.quantize_4bit(weight, blocksize=64, quant_type=type, compress_statistics=nested)
        tensors = {f"weight.{name}": each for name, each in state.as_dict(packed=True).items()}
        return {"weight": packed, **tensors}, bnb.dequantize_4bit(packed, state)

    return Case(settings, pack, "int8", "")


def _eight_bits(weight: torch.Tensor, to_grouped: Round) -> tuple[Tensors, torch.Tensor]:
    integers, scales, _ = bnb.int8_vectorwise_quant(weight.half())
    tensors = {"weight": integers, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, bitsandbytes.unpack_bytes(tensors)


_ALL = (1 << 20, 1 << 20)
_ROWS = (1, 1 << 20)
_BLOCKS = (128, 128)

CASES = {
    "awq 32": _awq(32),
    "awq 64": _awq(64),
    "gptq": _gptq(),
    "gptq in order": _gptq(ordered=True),
    "gptq v2": _gptq(version=2, said="gptq_v2"),
    "gptq v2 said to be v1": _gptq(version=2, said="gptq", symmetric=True),
    "gptq v1 said to be v2": _gptq(version=1, said="gptq_v2", symmetric=True),
    "gptq rows": _gptq(group=-1),
    "gptq of groups of 16": _gptq(group=16),
    "gptq of 8 bits": _gptq(8),
    "gptq of 2 bits": _gptq(2, group=32),
    "packed int4": _compressed("pack-quantized", 4, 64, True),
    "packed int4 with zeros": _compressed("pack-quantized", 4, 32, False),
    "packed int4 with zeros in bytes": _compressed("pack-quantized", 4, 32, False, zeros_in_bytes=True),
    "packed int4 rows": _compressed("pack-quantized", 4, None, True),
    "packed int8": _compressed("pack-quantized", 8, 64, True),
    "packed int8 rows with zeros": _compressed("pack-quantized", 8, None, False),
    "int8 rows": _compressed("int-quantized", 8, None, True),
    "int8 with zeros": _compressed("int-quantized", 8, 64, False),
    "float8 of compressed-tensors": _float8(
        _scheme("float-quantized", True, num_bits=8, type="float", strategy="tensor"), _ALL
    ),
    "float8 rows of compressed-tensors": _float8(
        _scheme("float-quantized", True, num_bits=8, type="float", strategy="channel"), _ROWS
    ),
    "float8 blocks of compressed-tensors": _float8(
        _scheme(
            "float-quantized", True, num_bits=8, type="float", strategy="block", block_structure=[128, 128]
        ),
        _BLOCKS,
    ),
    "fp8": _float8({"quant_method": "fp8", "activation_scheme": "static"}, _ALL),
    "fp8 rows": _float8({"quant_method": "fbgemm_fp8"}, _ROWS),
    "fp8 blocks": _float8({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, _BLOCKS),
    "nf4": _four_bits("nf4", False),
    "nf4 nested": _four_bits("nf4", True),
    "fp4": _four_bits("fp4", True),
    "bitsandbytes int8": Case(
        {"quant_method": "bitsandbytes", "load_in_8bit": True}, _eight_bits, "int8", ""
    ),
}

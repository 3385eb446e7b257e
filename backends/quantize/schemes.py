"""Each method with the format that it is written in, so that vLLM and others read it.

awq of 4 bits is AWQ's "gemm", gptq is GPTQ's version 1, which cannot hold all zeros. All else is compressed-tensors:
gptq with zeros, awq of 8 bits, for which writers of AWQ's own format disagree, and rtn are "pack-quantized"; fp8 is
"float-quantized", with activations that are quantised per token.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from backends.quantization import awq, gptq
from backends.quantization.grid import Grid
from backends.quantization.grouped import Grouped
from backends.quantization.packing import awq as awq_layout
from backends.quantization.packing import compressed, fp8
from backends.quantization.packing import gptq as gptq_layout
from backends.quantization.packing.fp8 import Float8
from backends.quantize.settings import Settings

Weight = Grouped | Float8


@dataclass(frozen=True, slots=True)
class Made:
    """A quantised weight. `scales` float32 [in]: what its columns were multiplied by before; None: by nothing."""

    weight: Weight
    scales: torch.Tensor | None = None


class Scheme(Protocol):
    """`dtype`: what is not quantised is stored in, scales too."""

    @property
    def dtype(self) -> torch.dtype: ...

    def rounded(self, weight: torch.Tensor) -> Weight:
        """`weight` float32 [out, in], each number to the nearest."""

    def quantised(self, weight: torch.Tensor, inputs: torch.Tensor | None, fold: awq.Fold | None) -> Made:
        """As the method does. `inputs` float32 [tokens, in], for methods that ask for them; `fold`: what column scales
        have to be like, None where nothing before can take them. Raises ValueError."""

    def pack(self, weight: Any) -> dict[str, torch.Tensor]:
        """The tensors of one projection. Raises ValueError for what the format has no place for."""

    def config(self) -> dict[str, Any]:
        """`quantization_config` of config.json."""


def scheme_of(settings: Settings, stored: torch.dtype) -> Scheme:
    """`stored`: the type that the model's own weights are stored in."""
    packed = (
        settings.method == "rtn"
        or settings.method == "awq" and settings.bits == 8
        or settings.method == "gptq" and settings.asymmetric
    )  # fmt: skip
    # Readers of AWQ and GPTQ expect it.
    dtype = stored if packed or settings.method == "fp8" else torch.float16
    if settings.method == "fp8":
        return Fp8(dtype)
    grid = Grid(settings.bits, settings.group, not settings.asymmetric, dtype)
    if settings.method == "gptq":
        return GptqPacked(grid, settings.act_order) if packed else Gptq(grid, settings.act_order)
    if settings.method == "rtn":
        return Rtn(grid)
    return AwqPacked(grid) if packed else Awq(grid)


@dataclass(frozen=True, slots=True)
class _Integers:
    grid: Grid

    @property
    def dtype(self) -> torch.dtype:
        return self.grid.dtype

    def rounded(self, weight: torch.Tensor) -> Grouped:
        return self.grid.nearest(weight, self.grid.ranges(weight))


@dataclass(frozen=True, slots=True)
class _Packed(_Integers):
    """What is written as compressed-tensors."""

    def pack(self, weight: Grouped) -> dict[str, torch.Tensor]:
        return compressed.pack(weight, symmetric=self.grid.symmetric)

    def config(self) -> dict[str, Any]:
        weights = {
            "num_bits": self.grid.bits,
            "type": "int",
            "symmetric": self.grid.symmetric,
            "strategy": "group" if self.grid.group else "channel",
            "group_size": self.grid.group or None,
            "dynamic": False,
        }
        return _compressed_tensors("pack-quantized", weights, None)


@dataclass(frozen=True, slots=True)
class Rtn(_Packed):
    """Each weight to the nearest integer."""

    def quantised(self, weight: torch.Tensor, inputs: torch.Tensor | None, fold: awq.Fold | None) -> Made:
        return Made(self.rounded(weight))


@dataclass(frozen=True, slots=True)
class AwqPacked(_Packed):
    """Strong columns are made larger first, and later ones make up for the errors of earlier ones."""

    def quantised(self, weight: torch.Tensor, inputs: torch.Tensor | None, fold: awq.Fold | None) -> Made:
        return _activation_aware(self.grid, weight, inputs, fold)


@dataclass(frozen=True, slots=True)
class Awq(_Integers):
    """The same in AWQ's own format."""

    def quantised(self, weight: torch.Tensor, inputs: torch.Tensor | None, fold: awq.Fold | None) -> Made:
        return _activation_aware(self.grid, weight, inputs, fold)

    def pack(self, weight: Grouped) -> dict[str, torch.Tensor]:
        return awq_layout.pack(weight)

    def config(self) -> dict[str, Any]:
        return {
            "quant_method": "awq",
            "bits": self.grid.bits,
            "group_size": self.grid.group or -1,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": ["lm_head"],
        }


def _activation_aware(
    grid: Grid, weight: torch.Tensor, inputs: torch.Tensor | None, fold: awq.Fold | None
) -> Made:
    assert inputs is not None
    if fold is None:
        return _compensated(grid, "static", weight, inputs)
    return Made(*awq.scaled(weight, inputs, grid, fold))


@dataclass(frozen=True, slots=True)
class Gptq(_Integers):
    """Later columns make up for the errors of earlier ones."""

    order: gptq.Order

    def quantised(self, weight: torch.Tensor, inputs: torch.Tensor | None, fold: awq.Fold | None) -> Made:
        return _compensated(self.grid, self.order, weight, inputs)

    def pack(self, weight: Grouped) -> dict[str, torch.Tensor]:
        return gptq_layout.pack(weight)

    def config(self) -> dict[str, Any]:
        return {
            "quant_method": "gptq",
            "bits": self.grid.bits,
            "group_size": self.grid.group or -1,
            "sym": True,
            "desc_act": self.order == "dynamic",
            "static_groups": self.order == "static",
            "true_sequential": True,
            "damp_percent": gptq.DAMPING,
            "lm_head": False,
            "checkpoint_format": "gptq",
        }


@dataclass(frozen=True, slots=True)
class GptqPacked(_Packed):
    """The same, for groups that have zeros."""

    order: gptq.Order

    def quantised(self, weight: torch.Tensor, inputs: torch.Tensor | None, fold: awq.Fold | None) -> Made:
        return _compensated(self.grid, self.order, weight, inputs)


def _compensated(grid: Grid, order: gptq.Order, weight: torch.Tensor, inputs: torch.Tensor | None) -> Made:
    assert inputs is not None
    return Made(gptq.compensated(weight, gptq.expected_moment(inputs), grid, order))


@dataclass(frozen=True, slots=True)
class Fp8:
    """Floating point of 8 bits with a scale for each row."""

    dtype: torch.dtype

    def rounded(self, weight: torch.Tensor) -> Float8:
        # Scales are rounded first, so that storing them loses nothing.
        scales = fp8.rounded(weight, (1, weight.shape[1])).scales.to(self.dtype)
        values = (weight / scales.float()).clamp(-fp8.LARGEST, fp8.LARGEST).to(torch.float8_e4m3fn)
        return Float8(values, scales, (1, weight.shape[1]))

    def quantised(self, weight: torch.Tensor, inputs: torch.Tensor | None, fold: awq.Fold | None) -> Made:
        return Made(self.rounded(weight))

    def pack(self, weight: Float8) -> dict[str, torch.Tensor]:
        return fp8.pack(weight)

    def config(self) -> dict[str, Any]:
        common = {"num_bits": 8, "type": "float", "symmetric": True}
        weights = {**common, "strategy": "channel", "dynamic": False}
        return _compressed_tensors(
            "float-quantized", weights, {**common, "strategy": "token", "dynamic": True}
        )


def _compressed_tensors(
    format: str, weights: dict[str, Any], inputs: dict[str, Any] | None
) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def rows_of(weight: Weight, start: int, stop: int) -> Weight:
    """Those output channels alone."""
    if isinstance(weight, Grouped):
        return weight.rows(start, stop)
    return Float8(weight.values[start:stop], weight.scales[start:stop], weight.block)

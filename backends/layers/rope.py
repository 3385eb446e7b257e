"""Rotary position embedding (arXiv:2104.09864): frequencies with their scaling, and tables of cos and sin."""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretch of the context: long waves are slowed by `factor`, short ones kept, between them a blend.

    Source: `apply_scaling` of github.com/meta-llama/llama-models.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int  # tokens that the model was first trained for

    def scale(self, frequencies: torch.Tensor) -> torch.Tensor:
        waves = self.original_context * frequencies / (2 * math.pi)  # waves in the original context
        blend = (waves - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = blend.clamp(0, 1)
        return frequencies * kept + frequencies / self.factor * (1 - kept)


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All positions divided by `factor`."""

    factor: float

    def scale(self, frequencies: torch.Tensor) -> torch.Tensor:
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class Rope:
    """`theta`: the base of the geometric series of frequencies. `scaling`: None for plain ones."""

    theta: float
    scaling: Llama3Scaling | LinearScaling | None = None

    def tables(self, head_dim: int, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of position · frequency, float32 [positions, head_dim / 2] each."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        frequencies = 1.0 / self.theta**exponents
        if self.scaling is not None:
            frequencies = self.scaling.scale(frequencies)
        angles = torch.outer(torch.arange(positions).float(), frequencies)
        return angles.cos(), angles.sin()

"""Tables of cos and sin for the settings of a rotary position embedding, see `rotation`."""

import math

import torch

from backends.layers.rotation import (
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    Rope,
    Scaling,
    YarnScaling,
)


def tables(rope: Rope, head_dim: int, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of position · frequency, float32 [positions, rotated / 2] each."""
    rotated = rope.rotated(head_dim)
    exponents = torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated
    frequencies, magnitude = 1.0 / rope.theta**exponents, 1.0
    if rope.scaling is not None:
        frequencies, magnitude = scaled(rope.scaling, frequencies, rope.theta), rope.scaling.magnitude
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    return angles.cos() * magnitude, angles.sin() * magnitude


def scaled(scaling: Scaling, frequencies: torch.Tensor, theta: float) -> torch.Tensor:
    """The frequencies, float32 [rotated / 2], slowed as `scaling` says."""
    match scaling:
        case LinearScaling():
            return frequencies / scaling.factor
        case Llama3Scaling():
            return _llama3(scaling, frequencies)
        case YarnScaling():
            return _yarn(scaling, frequencies, theta)
        case LongScaling():
            return frequencies / torch.tensor(scaling.long if scaling.stretched else scaling.short)


def _llama3(scaling: Llama3Scaling, frequencies: torch.Tensor) -> torch.Tensor:
    waves = scaling.original_context * frequencies / (2 * math.pi)  # waves in the original context
    blend = (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = blend.clamp(0, 1)
    return frequencies * kept + frequencies / scaling.factor * (1 - kept)


def _yarn(scaling: YarnScaling, frequencies: torch.Tensor, theta: float) -> torch.Tensor:
    size = 2 * len(frequencies)
    low, high = (
        size * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low or 0.001  # a step where the ends meet
    kept = 1 - ((torch.arange(len(frequencies)) - low) / width).clamp(0, 1)
    return frequencies / scaling.factor * (1 - kept) + frequencies * kept

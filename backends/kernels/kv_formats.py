"""How keys and values are kept: in eight bits each vector of a head has a scale of its own; for four see `kv_int4`.

A vector [D] is kept as codes and one float32: x ≈ code · scale, with scale = max |x| / `LARGEST`. Attention multiplies
scores by the scales of the keys and weights by those of the values, so that codes are never widened in memory.
"""

import torch

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # codes reach from minus this to this
LEAST = 1e-20  # of max |x|: a vector of zeros has a scale too, so that nothing is divided by 0

RECORDS = torch.uint8  # the type of a cache of four bits

_DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "int4": RECORDS,
    "fp8": torch.float8_e4m3fn,
}


def cache_dtype(asked: str, computed: torch.dtype, device: str) -> torch.dtype:
    """The type of keys and values for what an engine is asked for, see `wire.KVFormat`; `device`: cpu, cuda.

    Raises ValueError for one that the device has no kernels for.
    """
    if asked == "auto":
        return computed
    if asked == "fp8" and device == "cpu":
        raise ValueError("kv_cache: fp8 needs a GPU; the CPU kernels have fp32, bf16, int8 and int4")
    if asked == "int4" and device != "cpu":
        raise ValueError("kv_cache: int4 is for CPUs; the GPU kernels have fp32, bf16, int8 and fp8")
    return _DTYPES[asked]


def name_of(dtype: torch.dtype) -> str:
    """What a cache of this type is said to be kept in."""
    return "int4" if dtype == RECORDS else str(dtype).removeprefix("torch.")


def is_scaled(dtype: torch.dtype) -> bool:
    """Whether a cache of this type has scales."""
    return dtype in LARGEST


def quantize(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [..., D] in `dtype`, and float32 scales [...], of `x` [..., D]; rounded to nearest, ties to even."""
    largest = LARGEST[dtype]
    scales = x.float().abs().amax(-1).clamp(min=LEAST) / largest
    codes = (x.float() / scales[..., None]).clamp(-largest, largest)
    return (codes.round() if dtype == torch.int8 else codes).to(dtype), scales


def dequantize(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 [..., D]."""
    return codes.float() * scales[..., None]

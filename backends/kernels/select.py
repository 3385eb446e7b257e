"""Which kernels a device gets."""

import torch

from backends.kernels.layout import PLAIN, KVCache, Scheme
from backends.kernels.reference import Kernels


def kernels_for(
    cache: KVCache, cos: torch.Tensor, sin: torch.Tensor, heads: int, scheme: Scheme = PLAIN
) -> Kernels:
    """The fastest kernels for the device of `cache`; numba and triton are imported only where they serve."""
    if cache.keys.device.type == "cpu":
        from backends.kernels.cpu import Cpu

        return Cpu(cache, cos, sin, heads, scheme)
    from backends.kernels.cuda import Cuda

    return Cuda(cache, cos, sin, heads, scheme)

"""Which kernels a device gets."""

import torch

from backends.kernels.layout import PLAIN, KVCache, Scheme
from backends.kernels.products import PLAIN as PLAIN_PRODUCTS
from backends.kernels.products import Products
from backends.kernels.reference import Kernels

FLOAT8_PRODUCTS = (8, 9)  # the first compute capability whose matrix units take float8


def kernels_for(
    cache: KVCache, cos: torch.Tensor, sin: torch.Tensor, heads: int, scheme: Scheme = PLAIN
) -> Kernels:
    """The fastest kernels for the device of `cache`; numba and triton are imported only where they serve."""
    if cache.keys.device.type == "cpu":
        from backends.kernels.cpu import Cpu

        return Cpu(cache, cos, sin, heads, scheme)
    from backends.kernels.cuda import Cuda

    return Cuda(cache, cos, sin, heads, scheme)


def products_for(device: torch.device) -> Products:
    """The products with weights of `backends.quantization.packed`; plain ones, for tests, on a CPU."""
    if device.type == "cpu":
        return PLAIN_PRODUCTS
    from backends.kernels.triton_products import scaled, weight_only
    from backends.kernels.triton_rounding import quantize_rows

    has_float8 = torch.cuda.get_device_capability(device) >= FLOAT8_PRODUCTS
    return Products(weight_only, scaled, quantize_rows, has_float8)

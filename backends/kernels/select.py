"""Which kernels a device gets."""

from dataclasses import dataclass

import torch

from backends.kernels.layout import PLAIN, KVCache, Scheme
from backends.kernels.products import PLAIN as PLAIN_PRODUCTS
from backends.kernels.products import Products
from backends.kernels.reference import Kernels


@dataclass(frozen=True, slots=True)
class Place:
    """Where linear layers are.

    `capability`: the compute capability of a GPU, None for a CPU. `products`: with weights of
    `backends.quantization.packed`, which only GPUs have.
    """

    device: torch.device
    capability: tuple[int, int] | None = None
    products: Products = PLAIN_PRODUCTS


CPU = Place(torch.device("cpu"))


def kernels_for(
    cache: KVCache, cos: torch.Tensor, sin: torch.Tensor, heads: int, scheme: Scheme = PLAIN
) -> Kernels:
    """The fastest kernels for the device of `cache`; numba and triton are imported only where they serve."""
    if cache.keys.device.type == "cpu":
        from backends.kernels.cpu import Cpu

        return Cpu(cache, cos, sin, heads, scheme)
    from backends.kernels.cuda import Cuda

    return Cuda(cache, cos, sin, heads, scheme)


def place_of(device: torch.device) -> Place:
    """The fastest products of the device. Any but CPUs and NVIDIA's GPUs has the plain ones, and no capability."""
    if device.type != "cuda":
        return Place(device)
    from backends.kernels.triton_products import scaled, weight_only
    from backends.kernels.triton_rounding import quantize_rows

    capability = torch.cuda.get_device_capability(device)
    return Place(device, capability, Products(weight_only, scaled, quantize_rows))

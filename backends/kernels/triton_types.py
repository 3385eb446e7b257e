"""What all Triton kernels here share: options of the compiler, and how a tensor's type reaches them."""

import torch

from backends.kernels.products import FLOAT8_SINCE

OPTIONS = {"enable_fp_fusion": True}  # of the compiler; left open, Triton warns that its default will change


def codes(side: torch.Tensor) -> torch.Tensor:
    """Keys or values as kernels take them: float8 as bytes where the device does not know it, and on CPUs."""
    if side.dtype != torch.float8_e4m3fn:
        return side
    knows = side.is_cuda and torch.cuda.get_device_capability(side.device) >= FLOAT8_SINCE
    return side if knows else side.view(torch.uint8)

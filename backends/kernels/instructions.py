"""What this machine's CPU has instructions for."""

import torch


def cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 without widening it first."""
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())

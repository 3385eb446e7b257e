"""The kernels for GPUs: torch's attention for spans."""

import torch
from torch.nn.attention.bias import causal_lower_right

from backends.kernels.reference import Kernels


class Cuda(Kernels):
    """As Kernels, in the types of the device."""

    def attend_span(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int
    ) -> torch.Tensor:
        q, keys, values = (side.transpose(0, 1)[None] for side in (q, keys, values))
        out = torch.nn.functional.scaled_dot_product_attention(
            q,
            keys,
            values,
            attn_mask=causal_lower_right(q.shape[2], keys.shape[2]),
            scale=self.scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)

"""The kernels for GPUs: Triton for short spans, over the cache where it lies; torch's attention for long ones."""

import torch
from torch.nn.attention.bias import causal_lower_right

from backends.kernels.layout import Layout
from backends.kernels.reference import Kernels
from backends.kernels.triton_decode import paged_decode


class Cuda(Kernels):
    """As Kernels, in the types of the device; soft caps in plain torch."""

    def attend(self, layer: int, q: torch.Tensor, layout: Layout) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if len(layout.short_tokens):
            window = self.rules[layer].window
            paged_decode(q, self.cache, layer, layout, self.scale, self.soft_cap, window, out)
        for index in layout.long_spans:
            tokens = layout.tokens(index)
            out[tokens] = self.attend_gathered(layer, q[tokens], layout, index)
        return out

    def attend_span(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        start: int,
        window: int | None = None,
    ) -> torch.Tensor:
        if self.soft_cap is not None:
            return super().attend_span(q, keys, values, start, window)
        causal = causal_lower_right(len(q), len(keys))
        mask = causal if window is None else ~self.hidden(len(q), len(keys), window)
        q, keys, values = (side.transpose(0, 1)[None] for side in (q, keys, values))
        out = torch.nn.functional.scaled_dot_product_attention(
            q,
            keys,
            values,
            attn_mask=mask,
            scale=self.scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)

"""The kernels for GPUs: Triton throughout, over the cache where it lies."""

import torch

from backends.kernels.device_batch import DeviceBatch
from backends.kernels.layout import LONG, Layout
from backends.kernels.reference import Kernels
from backends.kernels.triton_attention import paged_attention, shape_of


class Cuda(Kernels):
    """As Kernels, in the types of the device."""

    def attend(self, layer: int, q: torch.Tensor, layout: Layout) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        window = self.rules[layer].window
        paged_attention(q, self.cache, layer, self._batch(layout, q), self.scale, self.soft_cap, window, out)
        return out

    def _batch(self, layout: Layout, q: torch.Tensor) -> DeviceBatch:
        """The same for all layers."""
        batch: DeviceBatch | None = layout.device_batch
        if batch is None:
            group = self.heads // self.kv_heads
            shapes = (
                shape_of(group, self.head_dim, q.element_size(), short=short) for short in (True, False)
            )
            short, long = (shape.rows // group for shape in shapes)
            batch = layout.device_batch = DeviceBatch.of(layout, short, long, LONG)
        return batch

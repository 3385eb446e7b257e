"""The kernels for GPUs: Triton throughout, over the cache where it lies. Nothing here waits for the device."""

from collections.abc import Sequence

import torch

from backends.kernels import triton_rows, triton_sampling
from backends.kernels.device_batch import DeviceBatch
from backends.kernels.layout import LONG, Layout
from backends.kernels.reference import Kernels
from backends.kernels.triton_attention import paged_attention, shape_of
from backends.kernels.triton_rotation import rotate_store
from backends.kernels.truncation import Law


class Cuda(Kernels):
    """As Kernels, in the types of the device."""

    def add_norm(
        self, residual: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        out = torch.empty_like(update)
        triton_rows.add_norm(residual, update, weight, eps, out)
        return out

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out = torch.empty_like(x)
        triton_rows.add_norm(None, x, weight, eps, out)
        return out

    def norm_heads(self, qkv: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, eps: float) -> None:
        triton_rows.norm_heads(qkv, queries, keys, self.heads, self.kv_heads, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._gated(gate_up, gelu=False)

    def gelu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._gated(gate_up, gelu=True)

    def _gated(self, gate_up: torch.Tensor, *, gelu: bool) -> torch.Tensor:
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        triton_rows.gated(gate_up, out, gelu=gelu)
        return out

    def rotate_store(self, layer: int, qkv: torch.Tensor, layout: Layout) -> torch.Tensor:
        batch = self.device_batch(layout, qkv.dtype)
        rotate_store(qkv, self.cache, layer, batch, self.cos, self.sin, self.rules[layer].angles)
        return qkv.view(len(qkv), -1, self.head_dim)[:, : self.heads]

    def attend(self, layer: int, q: torch.Tensor, layout: Layout) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        batch, window = self.device_batch(layout, q.dtype), self.rules[layer].window
        paged_attention(q, self.cache, layer, batch, self.scale, self.soft_cap, window, out)
        return out

    def truncate(self, logits: torch.Tensor, laws: Sequence[Law]) -> torch.Tensor:
        return triton_sampling.truncate(logits, laws)

    def draw(self, scores: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return triton_sampling.draw(scores, keys)

    def device_batch(self, layout: Layout, dtype: torch.dtype) -> DeviceBatch:
        """What the kernels read of `layout`, made once for all layers; `dtype`: of the queries."""
        batch: DeviceBatch | None = layout.device_batch
        if batch is None:
            group = self.heads // self.kv_heads
            shapes = (shape_of(group, self.head_dim, dtype.itemsize, short=short) for short in (True, False))
            short, long = (shape.rows // group for shape in shapes)
            batch = layout.device_batch = DeviceBatch.of(layout, short, long, LONG)
        return batch

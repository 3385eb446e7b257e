"""The kernels in plain torch: what the faster ones must equal, on any device.

Legend of shapes: T tokens of the batch, H query heads, K key/value heads (H is a multiple of K: grouped queries),
D head size, C context of one sequence.
"""

import torch

from backends.kernels.layout import KVCache, Layout
from backends.kernels.noise import gumbel


class Kernels:
    """Everything between two matrix products, for one model's cache.

    `cos`, `sin`: float32 [positions, D / 2], see `backends.layers.rope`.
    """

    def __init__(self, cache: KVCache, cos: torch.Tensor, sin: torch.Tensor, heads: int) -> None:
        self.cache = cache
        self.cos, self.sin = cos, sin
        self.heads = heads
        self.kv_heads, self.head_dim = cache.keys.shape[3:]
        self.scale = float(self.head_dim) ** -0.5

    def add_norm(
        self, residual: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add `update` to the float32 `residual` [T, width] in place; return its RMS norm in update's dtype.

        RMS norm (arXiv:1910.07467): x / sqrt(mean(x²) + eps) · weight, computed in float32.
        """
        residual += update
        inverse = torch.rsqrt(residual.square().mean(-1, keepdim=True) + eps)
        return (residual * inverse * weight).to(update.dtype)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) · up of the two halves of [T, 2 · width], computed in float32."""
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)

    def attention(self, layer: int, qkv: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Rotate, store, attend: causal attention of each token over its own sequence, [T, H · D].

        `qkv` [T, (H + 2 K) · D] are the projections; it is overwritten. Only the tokens' own places in the
        cache are written.
        """
        q = self.rotate_store(layer, qkv, layout)
        return self.attend(layer, q, layout).flatten(1)

    def rotate_store(self, layer: int, qkv: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Rotate queries and keys by their positions and store keys and values; the queries, [T, H, D]."""
        heads = qkv.view(len(qkv), -1, self.head_dim)
        rotated = heads[:, : self.heads + self.kv_heads]
        cos, sin = (table[layout.device_positions.long(), None] for table in (self.cos, self.sin))
        # Halves, not pairs: the order of dimensions that the checkpoints of the Hugging Face Hub have.
        first, second = rotated.float().chunk(2, dim=-1)
        rotated.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1))
        blocks, offsets = layout.places
        self.cache.keys[layer, blocks, offsets] = heads[:, self.heads : self.heads + self.kv_heads]
        self.cache.values[layer, blocks, offsets] = heads[:, self.heads + self.kv_heads :]
        return heads[:, : self.heads]

    def attend(self, layer: int, q: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Attention over the cache, span by span: q and result [T, H, D]."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for index, span in enumerate(layout.spans):
            tokens = layout.tokens(index)
            keys, values = self.cache.gather(layer, layout.device_tables[index], span.stop)
            out[tokens] = self.attend_span(q[tokens], keys, values, span.start)
        return out

    def attend_span(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int
    ) -> torch.Tensor:
        """q [n, H, D] at positions start, start + 1, … over keys and values [start + n, K, D]."""
        group = self.heads // self.kv_heads
        keys, values = (side.float().repeat_interleave(group, dim=1) for side in (keys, values))
        scores = torch.einsum("nhd,chd->hnc", q.float(), keys) * self.scale
        future = torch.ones(len(q), len(keys), dtype=torch.bool, device=q.device).triu(start + 1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        return torch.einsum("hnc,chd->nhd", weights, values).to(q.dtype)

    def draw(self, scores: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """One token per row of float32 `scores` [rows, vocabulary], drawn from their softmax by `noise`; int64.

        `keys` int64 [rows] are the rows' `noise.row_key`s.
        """
        return (scores.double() + gumbel(keys, scores.shape[1])).argmax(-1)

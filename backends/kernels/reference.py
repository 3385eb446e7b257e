"""The kernels in plain torch: what the faster ones must equal, on any device.

Legend of shapes: T tokens of the batch, H query heads, K key/value heads (H is a multiple of K: grouped queries),
D head size, C context of one sequence.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from backends.kernels.layout import LONG, PLAIN, KVCache, LayerRule, Layout, Scheme
from backends.kernels.noise import gumbel
from backends.kernels.truncation import Law, truncate

Linear = Callable[[torch.Tensor], torch.Tensor]


class Kernels:
    """Everything between two matrix products, for one model's cache.

    `cos`, `sin`: float32 [rows, R / 2], see `backends.layers.rope`; the first R of D dimensions are rotated. The
    rules of `scheme` say which rows are whose.
    """

    kinds: tuple[int, ...] = (1, LONG)  # spans of so many tokens use all that is compiled between them

    def __init__(
        self, cache: KVCache, cos: torch.Tensor, sin: torch.Tensor, heads: int, scheme: Scheme = PLAIN
    ) -> None:
        self.cache = cache
        self.cos, self.sin = cos, sin
        self.heads = heads
        self.kv_heads, self.head_dim = cache.keys.shape[3], cache.head_dim
        self.scale = float(self.head_dim) ** -0.5 if scheme.scale is None else scheme.scale
        self.soft_cap = scheme.soft_cap
        self.rules = scheme.rules or [LayerRule()] * len(cache.keys)

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

    def gelu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gelu(gate) · up, as `silu_mul`; gelu by its approximation with tanh (arXiv:1606.08415)."""
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)

    def project(
        self, residual: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float, linear: Linear
    ) -> torch.Tensor:
        """The product of `linear` with what `add_norm` gives."""
        return linear(self.add_norm(residual, update, weight, eps))

    def feed_forward(
        self,
        residual: torch.Tensor,
        update: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        gate_up: Linear,
        activation: str,
        down: Linear,
    ) -> torch.Tensor:
        """The gated MLP of what `add_norm` gives; `activation`: silu or gelu."""
        gate = self.gelu_mul if activation == "gelu" else self.silu_mul
        return down(gate(self.project(residual, update, weight, eps, gate_up)))

    def blocks(
        self,
        blocks: Sequence[Any],
        residual: torch.Tensor,
        update: torch.Tensor,
        layout: Layout,
        eps: float,
        activation: str,
    ) -> bool:
        """Run all blocks of a model at once where that is faster than one by one, and say whether.

        `blocks` and what becomes of `residual`: see `backends.models.decoder`; `update` becomes the next one.
        """
        return False

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """The RMS norm of `x` [T, width] itself, see `add_norm`."""
        return self.add_norm(torch.zeros(x.shape, dtype=torch.float32, device=x.device), x, weight, eps)

    def norm_heads(self, qkv: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, eps: float) -> None:
        """RMS norm of each query and each key in `qkv` [T, (H + 2 K) · D], in place; the weights have D."""
        heads = qkv.view(len(qkv), -1, self.head_dim)
        q, k, _ = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        for part, weight in ((q, queries), (k, keys)):
            part.copy_(self.norm(part.reshape(-1, self.head_dim), weight, eps).view(part.shape))

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
        if (angles := self.rules[layer].angles) is not None:
            rotated = heads[:, : self.heads + self.kv_heads, : 2 * self.cos.shape[1]]
            cos, sin = (table[angles + layout.device_angles, None] for table in (self.cos, self.sin))
            # Halves, not pairs: the order of dimensions that the checkpoints of the Hugging Face Hub have.
            first, second = rotated.float().chunk(2, dim=-1)
            rotated.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1))
        q, keys, values = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        self.cache.write(layer, layout.places, keys, values)
        return q

    def attend(self, layer: int, q: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Attention over the cache, span by span: q and result [T, H, D]."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for index in range(len(layout.spans)):
            tokens = layout.tokens(index)
            out[tokens] = self.attend_gathered(layer, q[tokens], layout, index)
        return out

    def attend_gathered(self, layer: int, q: torch.Tensor, layout: Layout, index: int) -> torch.Tensor:
        """Attention of one span over a copy of what it sees: q and result [n, H, D]."""
        span, rule = layout.spans[index], self.rules[layer]
        first = rule.first(span.start)
        keys, values = self.cache.gather(layer, layout.device_tables[index], span.stop, first)
        # A window that reaches back to the first token anyway is none.
        window = None if rule.first(span.stop - 1) == 0 else rule.window
        return self.attend_span(q, keys, values, span.start - first, window)

    def attend_span(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        start: int,
        window: int | None = None,
    ) -> torch.Tensor:
        """q [n, H, D] at positions start, start + 1, … over keys and values [start + n, K, D].

        `window` as in LayerRule.
        """
        group = self.heads // self.kv_heads
        keys, values = (side.float().repeat_interleave(group, dim=1) for side in (keys, values))
        scores = torch.einsum("nhd,chd->hnc", q.float(), keys) * self.scale
        if self.soft_cap is not None:
            scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
        hidden = self.hidden(len(q), len(keys), window)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hnc,chd->nhd", weights, values).to(q.dtype)

    def hidden(self, count: int, context: int, window: int | None) -> torch.Tensor:
        """Which of `context` tokens the last `count` of them do not see: bool [count, context]."""
        ones = torch.ones(count, context, dtype=torch.bool, device=self.cos.device)
        future = ones.triu(context - count + 1)
        return future if window is None else future | ones.tril(context - count - window)

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """The first of the largest of each row [rows, vocabulary], int64; of a row with NaN, any."""
        found: torch.Tensor = logits.float().max(-1).indices  # by the kernel that vectorises
        return found

    def truncate(self, logits: torch.Tensor, laws: Sequence[Law]) -> torch.Tensor:
        """What is left to draw from, see `truncation.truncate`."""
        return truncate(logits, laws)

    def draw(self, scores: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """One token per row of float32 `scores` [rows, vocabulary], drawn from their softmax by `noise`; int64.

        `keys` int64 [rows] are the rows' `noise.row_key`s.
        """
        return (scores.double() + gumbel(keys, scores.shape[1])).argmax(-1)

    def signals(self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """How sure the model is: of `tokens` int64 [N], the rows `rows` int64 [N] of `logits` [R, vocabulary ≥ 2].

        float32 [N, 3]: log-probability of the token, the largest logit less the second largest, and the entropy of
        the softmax, both logarithms natural.
        """
        chosen = logits.index_select(0, rows).float()
        logs = chosen.log_softmax(-1)
        best = chosen.topk(2).values
        entropy = -(logs.exp() * logs).sum(-1)
        return torch.stack([logs.gather(1, tokens[:, None])[:, 0], best[:, 0] - best[:, 1], entropy], 1)

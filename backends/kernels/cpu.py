"""The kernels for CPUs: numba between the matrix products.

Attention runs over the cache where it lies, and its answer for a token is the same to the last bit in any batch and
however a prompt is cut, see `softmax`. With instructions for products of bfloat16, torch's blocked kernel is so much
faster that long spans are worth a copy of their keys and values; they are longer than any draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backends.instructions import cpu_has_bfloat16
from backends.kernels import between, draws, int8, loops, stack
from backends.kernels import signals as sureness
from backends.kernels.attention import FEW, Plan, attend
from backends.kernels.layout import ENDLESS, PLAIN, KVCache, Layout, Scheme
from backends.kernels.reference import Kernels, Linear
from backends.kernels.sides import array, side
from backends.kernels.stack import Stack

Array = NDArray[Any]
Part = tuple[torch.Tensor, torch.Tensor]  # attention over some of the keys, and its log-sum-exp

COPIED = 32  # tokens of a span from which on torch's kernel is the faster one, with instructions for bfloat16


@dataclass(frozen=True, slots=True)
class Shares:
    """Which spans of a batch run where they lie, and which over a copy of what they see."""

    plan: Plan
    copied: list[int]


class Cpu(Kernels):
    """As Kernels; float32 and bfloat16."""

    kinds = (1, FEW + 1, int8.FEW + 1)

    def __init__(
        self, cache: KVCache, cos: torch.Tensor, sin: torch.Tensor, heads: int, scheme: Scheme = PLAIN
    ) -> None:
        super().__init__(cache, cos, sin, heads, scheme)
        self._cache = side(cache.keys, cache.key_scales), side(cache.values, cache.value_scales)
        self._rope = cos.numpy(), sin.numpy()
        self._rules = stack.rules_of(self.rules)
        self._stack: tuple[Sequence[Any], Stack | None] = (), None  # blocks, and what became of them
        self._most = int8.FEW if int8.cpu_has("avx512vnni") else ENDLESS  # rows of a product in loops

    def add_norm(
        self, residual: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        out = torch.empty_like(update)
        loops.add_norm(residual.numpy(), array(update), weight.numpy(), np.float32(eps), array(out))
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        out = _half(gate_up)
        loops.silu_mul(array(gate_up), array(out))
        return out

    def gelu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        out = _half(gate_up)
        loops.gelu_mul(array(gate_up), array(out))
        return out

    def project(
        self, residual: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float, linear: Linear
    ) -> torch.Tensor:
        rows = update.shape[0]
        if (arrays := self._arrays(linear, rows)) is None:
            return super().project(residual, update, weight, eps, linear)
        out = update.new_empty(rows, len(arrays[-1]))
        between.project(residual.numpy(), array(update), weight.numpy(), np.float32(eps), arrays, array(out))
        return out

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
        rows = update.shape[0]
        first, last = self._arrays(gate_up, rows), self._arrays(down, rows)
        if first is None or last is None:
            return super().feed_forward(residual, update, weight, eps, gate_up, activation, down)
        out = torch.empty_like(update)
        between.feed_forward(
            residual.numpy(),
            array(update),
            weight.numpy(),
            np.float32(eps),
            first,
            len(first[-1]) // 2,
            activation == "gelu",
            last,
            array(out),
        )
        return out

    def _arrays(self, linear: Linear, rows: int) -> between.Arrays | None:
        """What loops multiply by, None where torch multiplies. Their last one has the channels."""
        arrays: between.Arrays | None = getattr(linear, "arrays", None) if rows <= self._most else None
        return arrays

    def attention(self, layer: int, qkv: torch.Tensor, layout: Layout) -> torch.Tensor:
        out = qkv.new_empty(qkv.shape[0], self.heads * self.head_dim)
        rule = self.rules[layer]
        shares = self._shares(layout, qkv.dtype, windowed=rule.window is not None)
        projections, plan = array(qkv), shares.plan
        loops.rotate_store(
            layer,
            self.head_dim,
            loops.UNROTATED if rule.angles is None else rule.angles,
            projections,
            *self._rope,
            *self._cache,
            layout.positions,
            layout.angles,
            layout.rows,
            layout.tables,
        )
        attend(
            layer,
            self.head_dim,
            ENDLESS if rule.window is None else rule.window,
            np.float32(self.scale),
            np.float32(self.soft_cap or 0),
            projections,
            *self._cache,
            layout.tables,
            plan.pieces,
            plan.groups,
            array(out),
        )
        for index in shares.copied:
            tokens = layout.tokens(index)
            q = qkv[tokens, : self.heads * self.head_dim].view(-1, self.heads, self.head_dim)
            out[tokens] = self.attend_gathered(layer, q, layout, index).flatten(1)
        return out

    def blocks(
        self,
        blocks: Sequence[Any],
        residual: torch.Tensor,
        update: torch.Tensor,
        layout: Layout,
        eps: float,
        activation: str,
    ) -> bool:
        if len(update) > int8.FEW or (weights := self._stacked(blocks)) is None:
            return False
        shares = self._shares(layout, update.dtype, windowed=False)
        if shares.copied:
            return False
        stack.run(
            residual.numpy(),
            array(update),
            np.float32(eps),
            weights.norms,
            weights.linears,
            weights.addresses,
            self._rules,
            self.head_dim,
            np.float32(self.scale),
            np.float32(self.soft_cap or 0),
            activation == "gelu",
            *self._rope,
            *self._cache,
            layout.positions,
            layout.angles,
            layout.rows,
            layout.tables,
            shares.plan.pieces,
            shares.plan.groups,
        )
        return True

    def _stacked(self, blocks: Sequence[Any]) -> Stack | None:
        if self._stack[0] is not blocks:
            self._stack = blocks, Stack.of(blocks)
        return self._stack[1]

    def _shares(self, layout: Layout, dtype: torch.dtype, windowed: bool) -> Shares:
        """By the length of a span alone, so that its answer does not depend on its neighbours.

        What hides more than the future costs torch's kernel more than it saves.
        """
        if windowed not in layout.plans:
            copies = dtype == torch.bfloat16 and cpu_has_bfloat16() and self.soft_cap is None
            least = COPIED if copies and not windowed else np.inf
            spans = [
                (row, int(layout.firsts[row]), layout.spans[row])
                for row in np.flatnonzero(layout.counts < least).tolist()
            ]
            layout.plans[windowed] = Shares(
                plan=Plan.of(spans, self.heads, self.kv_heads),
                copied=np.flatnonzero(layout.counts >= least).tolist(),
            )
        shares: Shares = layout.plans[windowed]
        return shares

    def draw(self, scores: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(keys)
        draws.draw(scores.numpy(), keys.numpy().view(np.uint64), out.numpy())
        return out

    def signals(self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(rows), 3)
        sureness.signals(array(logits), rows.numpy(), tokens.numpy(), out.numpy())
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
        hidden = None if window is None else self.hidden(len(q), len(keys), window)
        q, keys, values = (each.to(q.dtype).transpose(0, 1)[None] for each in (q, keys, values))
        if hidden is not None:
            mask = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill_(hidden, -torch.inf)
            return self._flash(q, keys, values, mask=mask)[0][0].transpose(0, 1)
        own = self._flash(q, keys[:, :, start:], values[:, :, start:], causal=True)
        if start == 0:
            merged = own[0]
        else:
            merged = _merge(self._flash(q, keys[:, :, :start], values[:, :, :start]), own)
        return merged[0].transpose(0, 1)

    def _flash(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        causal: bool = False,
        mask: torch.Tensor | None = None,
    ) -> Part:
        """[1, H, n, D] and [1, H, n]. The kernel's causal mask is aligned top left, which is right for a span's
        own keys only."""
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, keys, values, 0.0, causal, attn_mask=mask, scale=self.scale
        )
        return out, lse


def _half(gate_up: torch.Tensor) -> torch.Tensor:
    """Where the product of both halves goes."""
    rows, columns = gate_up.shape
    return gate_up.new_empty(rows, columns // 2)


def _merge(one: Part, other: Part) -> torch.Tensor:
    """Attention over the union of two disjoint sets of keys (arXiv:2205.14135, section 3.1)."""
    weight = torch.sigmoid(one[1] - other[1])[..., None]
    return (one[0] * weight + other[0] * (1 - weight)).to(one[0].dtype)

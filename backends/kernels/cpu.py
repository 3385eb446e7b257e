"""The kernels for CPUs: numba between the matrix products.

Attention runs over the cache where it lies, and its answer for a token is the same to the last bit in any batch and
however a prompt is cut, see `softmax`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backends.kernels import between, draws, loops, stack
from backends.kernels import signals as sureness
from backends.kernels.attention import Plan, attend
from backends.kernels.cached import FEW
from backends.kernels.layout import ENDLESS, PLAIN, KVCache, Layout, Scheme
from backends.kernels.reference import Kernels, Linear
from backends.kernels.sides import array, side
from backends.kernels.stack import Stack

Array = NDArray[Any]


class Cpu(Kernels):
    """As Kernels; float32 and bfloat16."""

    kinds = (1, FEW + 1)

    def __init__(
        self, cache: KVCache, cos: torch.Tensor, sin: torch.Tensor, heads: int, scheme: Scheme = PLAIN
    ) -> None:
        super().__init__(cache, cos, sin, heads, scheme)
        self._cache = side(cache.keys, cache.key_scales), side(cache.values, cache.value_scales)
        self._rope = cos.numpy(), sin.numpy()
        self._rules = stack.rules_of(self.rules)
        self._stack: tuple[Sequence[Any], Stack | None] = (), None  # blocks, and what became of them

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
        if (arrays := _arrays(linear)) is None:
            return super().project(residual, update, weight, eps, linear)
        out = update.new_empty(len(update), len(arrays[-1]))
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
        first, last = _arrays(gate_up), _arrays(down)
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

    def attention(self, layer: int, qkv: torch.Tensor, layout: Layout) -> torch.Tensor:
        out = qkv.new_empty(qkv.shape[0], self.heads * self.head_dim)
        rule = self.rules[layer]
        projections, plan = array(qkv), self._plan(layout)
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
        if (weights := self._stacked(blocks)) is None:
            return False
        plan = self._plan(layout)
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
            plan.pieces,
            plan.groups,
        )
        return True

    def _stacked(self, blocks: Sequence[Any]) -> Stack | None:
        if self._stack[0] is not blocks:
            self._stack = blocks, Stack.of(blocks)
        return self._stack[1]

    def _plan(self, layout: Layout) -> Plan:
        """The same for all layers."""
        if layout.plan is None:
            spans = zip(range(len(layout.spans)), layout.firsts.tolist(), layout.spans, strict=True)
            layout.plan = Plan.of(spans, self.heads, self.kv_heads)
        plan: Plan = layout.plan
        return plan

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(logits), dtype=torch.int64)
        sureness.argmax(array(logits), out.numpy())
        return out

    def draw(self, scores: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(keys)
        draws.draw(scores.numpy(), keys.numpy().view(np.uint64), out.numpy())
        return out

    def signals(self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(rows), 3)
        sureness.signals(array(logits), rows.numpy(), tokens.numpy(), out.numpy())
        return out


def _arrays(linear: Linear) -> between.Arrays | None:
    """What loops multiply by, None where torch multiplies. Their last one has the channels."""
    arrays: between.Arrays | None = getattr(linear, "arrays", None)
    return arrays


def _half(gate_up: torch.Tensor) -> torch.Tensor:
    """Where the product of both halves goes."""
    rows, columns = gate_up.shape
    return gate_up.new_empty(rows, columns // 2)

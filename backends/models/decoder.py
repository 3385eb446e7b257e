"""The decoder: pre-norm transformer blocks with grouped-query attention and a gated MLP.

All sequences of a batch run as one row of tokens; who attends to what is the business of the kernels.
"""

from dataclasses import dataclass

import torch

from backends.kernels.layout import Layout
from backends.kernels.reference import Kernels
from backends.layers.linear import Linear
from backends.models.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Block:
    """One layer's weights; norms in float32. Fused projections: queries, keys, values; gate, up."""

    attention_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Decoder:
    """The weights of a model. `embedding` [vocabulary, width] gives the type that products are computed in."""

    config: DecoderConfig
    embedding: torch.Tensor
    blocks: list[Block]
    norm: torch.Tensor
    head: Linear
    vocab_size: int  # ids that get logits

    def forward(
        self, ids: torch.Tensor, layout: Layout, wanted: torch.Tensor, kernels: Kernels
    ) -> torch.Tensor:
        """Logits [len(wanted), vocabulary] of the `wanted` tokens (indices into `ids`), in the model's type.

        `ids` int64 [tokens] lie as `layout` says; their keys and values enter the cache of `kernels`. The
        residual stream is float32 whatever the model's type.
        """
        eps = self.config.norm_eps
        update = self.embedding.index_select(0, ids)
        residual = torch.zeros(update.shape, dtype=torch.float32, device=update.device)
        for layer, block in enumerate(self.blocks):
            x = kernels.add_norm(residual, update, block.attention_norm, eps)
            update = block.output(kernels.attention(layer, block.qkv(x), layout))
            x = kernels.add_norm(residual, update, block.mlp_norm, eps)
            update = block.down(kernels.silu_mul(block.gate_up(x)))
        if not len(wanted):
            return self.embedding.new_empty(0, self.vocab_size)
        residual, update = residual.index_select(0, wanted), update.index_select(0, wanted)
        return self.head(kernels.add_norm(residual, update, self.norm, eps))

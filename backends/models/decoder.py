"""The decoder: pre-norm transformer blocks with grouped-query attention and a gated MLP.

All sequences of a batch run as one row of tokens; who attends to what is the business of the kernels.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from backends.kernels.layout import KVCache, LayerRule, Layout, Scheme
from backends.kernels.reference import Kernels
from backends.kernels.select import kernels_for
from backends.layers.embedding import Embedding
from backends.layers.linear import Linear
from backends.layers.parallel import SharedEmbedding
from backends.layers.rope import tables
from backends.models.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Block:
    """One layer's weights; norms in float32, None where the architecture has none. Fused projections: queries,
    keys, values; gate, up."""

    attention_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    head_norms: tuple[torch.Tensor, torch.Tensor] | None  # of queries and of keys
    post_norms: tuple[torch.Tensor, torch.Tensor] | None  # after attention and after the MLP


@dataclass(frozen=True, slots=True)
class Decoder:
    """The weights of a model, or one rank's part of them, which `config` then describes.

    The type of what `embedding` gives is the one that products are computed in.
    """

    config: DecoderConfig
    embedding: Embedding | SharedEmbedding
    blocks: list[Block]
    norm: torch.Tensor
    head: Linear
    vocab_size: int  # ids that get logits

    def forward(
        self, ids: torch.Tensor, layout: Layout, wanted: torch.Tensor, kernels: Kernels
    ) -> torch.Tensor:
        """Logits [len(wanted), vocabulary] of the `wanted` tokens (indices into `ids`), in the model's type.

        `ids` int64 [tokens] lie as `layout` says; their keys and values enter the cache of `kernels`. The
        residual stream is float32 whatever the model's type. Of several ranks the first one alone gets the logits.
        """
        update = embed(self.embedding, ids, self.config)
        residual = torch.zeros(update.shape, dtype=torch.float32, device=update.device)
        eps, activation = self.config.norm_eps, self.config.activation
        if not kernels.blocks(self.blocks, residual, update, layout, eps, activation):
            for layer, block in enumerate(self.blocks):
                update = through(layer, block, self.config, residual, update, layout, kernels)
        if not len(wanted):
            return update.new_empty(0, self.vocab_size)
        residual, update = residual.index_select(0, wanted), update.index_select(0, wanted)
        return self._logits(kernels.add_norm(residual, update, self.norm, eps))

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        logits, cap = self.head(x), self.config.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap


def embed(embedding: Embedding | SharedEmbedding, ids: torch.Tensor, config: DecoderConfig) -> torch.Tensor:
    """What the first block gets: [tokens, width] in the type of `embedding`."""
    embedded = embedding(ids)
    scale = config.embedding_scale
    return embedded if scale == 1 else embedded * torch.tensor(scale, dtype=embedded.dtype)


def through(
    layer: int,
    block: Block,
    config: DecoderConfig,
    residual: torch.Tensor,
    update: torch.Tensor,
    layout: Layout,
    kernels: Kernels,
) -> torch.Tensor:
    """One block: adds `update` [tokens, width] to the float32 `residual` in place and returns the next update, which
    is not added yet. `layer`: where the block's keys and values lie in the cache of `kernels`."""
    eps = config.norm_eps
    qkv = kernels.project(residual, update, block.attention_norm, eps, block.qkv)
    if block.head_norms is not None:
        kernels.norm_heads(qkv, *block.head_norms, eps)
    update = block.output(kernels.attention(layer, qkv, layout))
    if block.post_norms is not None:
        update = kernels.norm(update, block.post_norms[0], eps)
    update = kernels.feed_forward(
        residual, update, block.mlp_norm, eps, block.gate_up, config.activation, block.down
    )
    return update if block.post_norms is None else kernels.norm(update, block.post_norms[1], eps)


def kernels_of(
    config: DecoderConfig, cache: KVCache, positions: int, make: Callable[..., Kernels] = kernels_for
) -> Kernels:
    """The kernels that attend as `config` says, for `cache` and sequences of up to `positions` tokens.

    The spans of sequences beyond `config.rope.border` have a shift of `positions`: there lie the angles for these.
    """
    ropes = [config.rope] if config.window_rope is None else [config.rope, config.window_rope]
    lengths = 1 if config.rope.border is None else 2
    angles = [
        tables(each, config.head_dim, positions)
        for rope in ropes
        for each in (rope, rope.stretched)[:lengths]
    ]
    cos, sin = (torch.cat(parts).to(cache.keys.device) for parts in zip(*angles, strict=True))
    window_angles = lengths * positions * (len(ropes) - 1)
    rules = [
        LayerRule(
            angles=None if layer in config.unrotated_layers else window_angles if windowed else 0,
            window=config.window if windowed else None,
        )
        for layer in range(config.layers)
        for windowed in [layer in config.window_layers]
    ]
    scheme = Scheme(config.attention_scale, config.attention_cap, rules)
    return make(cache, cos, sin, config.heads, scheme)

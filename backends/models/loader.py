"""A checkpoint's tensors into a decoder, one layer at a time, so that no two copies of a model exist."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from backends.layers.linear import Linear, linear
from backends.models.checkpoint import Checkpoint
from backends.models.config import DecoderConfig
from backends.models.decoder import Block, Decoder

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def load_decoder(
    checkpoint: Checkpoint,
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    vocab_size: int | None = None,
) -> Decoder:
    """The decoder of `config` with the checkpoint's weights.

    `vocab_size`: only so many ids get logits (a checkpoint's vocabulary may be padded beyond the tokenizer's).
    Raises ValueError naming a tensor that is missing, of the wrong shape, or unknown to this architecture.
    """
    source = _Source(checkpoint, dtype, device)
    rows = config.vocab_size if vocab_size is None else min(vocab_size, config.vocab_size)
    embedding = source.tensor(EMBEDDING, config.vocab_size, config.width)
    blocks = [_block(source, config, f"model.layers.{layer}") for layer in range(config.layers)]
    norm = source.norm("model.norm.weight", config.width)
    head = embedding if config.tied else source.tensor(HEAD, config.vocab_size, config.width)
    source.refuse_unknown()
    return Decoder(config, embedding, blocks, norm, linear(head[:rows]), rows)


@dataclass
class _Source:
    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device
    used: set[str] = field(default_factory=set)

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        return self._load(name, self.dtype, shape)

    def norm(self, name: str, width: int) -> torch.Tensor:
        return self._load(name, torch.float32, (width,))

    def fused(self, names: Sequence[str], rows: Sequence[int], columns: int, bias: bool) -> Linear:
        """One linear of several projections: their rows one below another."""
        weights = [self.tensor(f"{name}.weight", n, columns) for name, n in zip(names, rows, strict=True)]
        biases = [self.tensor(f"{name}.bias", n) for name, n in zip(names, rows, strict=True)] if bias else []
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        return linear(weight, torch.cat(biases) if bias else None)

    def _load(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self.checkpoint.names():
            raise ValueError(f"{name}: missing from the checkpoint")
        tensor = self.checkpoint.load(name, dtype)
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: has shape {tuple(tensor.shape)}, config.json says {shape}")
        self.used.add(name)
        return tensor.to(self.device)

    def refuse_unknown(self) -> None:
        """A tensor that nobody asked for means that the model computes something that we would leave out."""
        unknown = (
            name
            for name in sorted(self.checkpoint.names() - self.used)
            # A tied head may be stored a second time; old checkpoints hold the frequencies of the rope.
            if name != HEAD and not name.endswith(".rotary_emb.inv_freq")
        )
        for name in unknown:
            raise ValueError(f"{name}: the checkpoint has it, the architecture does not")


def _block(source: _Source, config: DecoderConfig, prefix: str) -> Block:
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    width, queries, keys = config.width, config.heads * config.head_dim, config.kv_heads * config.head_dim
    fused: Callable[..., Linear] = source.fused
    return Block(
        attention_norm=source.norm(f"{prefix}.input_layernorm.weight", width),
        qkv=fused(
            [f"{attention}.{side}_proj" for side in "qkv"], [queries, keys, keys], width, config.qkv_bias
        ),
        output=fused([f"{attention}.o_proj"], [width], queries, config.output_bias),
        mlp_norm=source.norm(f"{prefix}.post_attention_layernorm.weight", width),
        gate_up=fused(
            [f"{mlp}.{side}_proj" for side in ("gate", "up")], [config.mlp_width] * 2, width, config.mlp_bias
        ),
        down=fused([f"{mlp}.down_proj"], [width], config.mlp_width, config.mlp_bias),
    )

"""What a decoder needs to know of its architecture, read from the content of a Hugging Face config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backends.layers.rotation import Rope, YarnScaling
from backends.models.fields import ConfigError, integer, number
from backends.models.ropes import FULL, SLIDING, ropes

__all__ = ["ConfigError", "DecoderConfig", "shape", "window_layers"]


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """One family of decoders: pre-norm blocks of grouped-query attention and a gated MLP, see `decoder`."""

    layers: int
    width: int
    mlp_width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int  # rows of the embedding, padding included
    max_positions: int
    norm_eps: float
    rope: Rope
    tied: bool  # the head is the embedding

    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    mlp_bias: bool = False
    activation: str = "silu"  # of the MLP's gate, or "gelu"

    window: int | None = None  # how many tokens a token sees in `window_layers`, itself included
    window_layers: frozenset[int] = frozenset()
    window_rope: Rope | None = None  # theirs, where it is another one
    unrotated_layers: frozenset[int] = frozenset()  # these know of no positions

    head_norms: bool = False  # queries and keys are normalised, each head by itself, before they are rotated
    post_norms: bool = False  # attention and MLP are normalised once more before they are added
    norm_offset: float = 0.0  # norms multiply by it + their weight
    attention_scale: float | None = None  # of scores; None: head_dim ** -0.5
    attention_cap: float | None = None  # scores stay below, see `kernels.layout.Scheme`
    logit_cap: float | None = None  # the same for logits
    embedding_scale: float = 1.0  # rounded to the model's type before it is used

    fused_projections: bool = (
        False  # the checkpoint has queries, keys and values in one tensor; gate and up too
    )


def shape(
    config: Mapping[str, Any], *, tied: bool = False, theta: float = 10000.0, head_dim: int | None = None
) -> dict[str, Any]:
    """The fields of DecoderConfig that all architectures spell alike, with the defaults given where the config is
    silent. Raises ConfigError."""
    heads, width = integer(config, "num_attention_heads"), integer(config, "hidden_size")
    kv_heads = integer(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(f"num_key_value_heads: {kv_heads} does not divide num_attention_heads, {heads}")
    head_dim = integer(config, "head_dim", head_dim or width // heads)
    if head_dim % 2:
        raise ConfigError(f"head_dim: {head_dim} is odd, so that its halves cannot be rotated")
    full, sliding = (ropes(config, head_dim, theta).get(kind) for kind in (FULL, SLIDING))
    rope = full or sliding
    assert rope is not None, "settings for no type of layers are those for both"
    tie = config.get("tie_word_embeddings")
    return {
        "layers": integer(config, "num_hidden_layers"),
        "width": width,
        "mlp_width": integer(config, "intermediate_size"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": integer(config, "vocab_size"),
        "max_positions": _max_positions(config, rope),
        "norm_eps": number(config, "rms_norm_eps", 1e-6),
        "rope": rope,
        "window_rope": None if sliding == rope else sliding,
        "activation": _activation(config),
        "tied": tied if tie is None else bool(tie),
    }


def _max_positions(config: Mapping[str, Any], rope: Rope) -> int:
    """Instructions for YaRN, such as Qwen's, add a rope and leave the original length standing."""
    longest = integer(config, "max_position_embeddings")
    if isinstance(rope.scaling, YarnScaling):
        return max(longest, int(rope.scaling.original_context * rope.scaling.factor))
    return longest


_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}


def _activation(config: Mapping[str, Any]) -> str:
    name = "hidden_act" if config.get("hidden_activation") is None else "hidden_activation"
    value = config.get(name, "silu")
    if value not in _ACTIVATIONS:
        known = ", ".join(map(repr, _ACTIVATIONS))
        raise ConfigError(f"{name}: {value!r} is not supported, only {known}")
    return _ACTIVATIONS[value]


def window_layers(config: Mapping[str, Any], default: frozenset[int]) -> frozenset[int]:
    """The layers with a window: those that `layer_types` says, or `default`. Raises ConfigError."""
    types, layers = config.get("layer_types"), integer(config, "num_hidden_layers")
    if types is None:
        return default
    if not isinstance(types, list) or len(types) != layers:
        raise ConfigError(f"layer_types: is not a list of {layers} types")
    for kind in types:
        if kind not in (FULL, SLIDING):
            raise ConfigError(f"layer_types: {kind!r} is not supported, only {FULL!r} and {SLIDING!r}")
    return frozenset(layer for layer, kind in enumerate(types) if kind == SLIDING)

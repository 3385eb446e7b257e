"""What a decoder needs to know of its architecture, read from the content of a Hugging Face config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backends.layers.rope import LinearScaling, Llama3Scaling, Rope


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


class ConfigError(ValueError):
    """A config.json that is broken or asks for what is not supported; the message names the field."""


def shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of DecoderConfig that all architectures spell alike. Raises ConfigError."""
    _refuse_unsupported(config)
    heads, width = integer(config, "num_attention_heads"), integer(config, "hidden_size")
    kv_heads = integer(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(f"num_key_value_heads: {kv_heads} does not divide num_attention_heads, {heads}")
    head_dim = integer(config, "head_dim", width // heads)
    if head_dim % 2:
        raise ConfigError(f"head_dim: {head_dim} is odd, so that its halves cannot be rotated")
    return {
        "layers": integer(config, "num_hidden_layers"),
        "width": width,
        "mlp_width": integer(config, "intermediate_size"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": integer(config, "vocab_size"),
        "max_positions": integer(config, "max_position_embeddings"),
        "norm_eps": number(config, "rms_norm_eps", 1e-6),
        "rope": rope(config),
        "tied": bool(config.get("tie_word_embeddings", False)),
    }


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"hidden_act: {activation!r} is not supported, only 'silu'")
    if config.get("quantization_config") is not None:
        raise ConfigError("quantization_config: weights quantised this way are not supported")


def rope(config: Mapping[str, Any]) -> Rope:
    """Both spellings: `rope_parameters` (transformers 5), or `rope_theta` with `rope_scaling`. Raises ConfigError."""
    parameters = config.get("rope_parameters")
    name = "rope_scaling" if parameters is None else "rope_parameters"
    options = config.get(name) or {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"{name}: {options!r} is not an object")
    theta = options.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = options.get("rope_type", options.get("type", "default"))
    if kind not in _SCALINGS:
        raise ConfigError(f"{name}: type {kind!r} is not supported, only {', '.join(map(repr, _SCALINGS))}")
    if {**config, **options}.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError("partial_rotary_factor: heads rotated in part are not supported")
    return Rope(theta=number({"rope_theta": theta}, "rope_theta"), scaling=_SCALINGS[kind](options))


def _llama3(options: Mapping[str, Any]) -> Llama3Scaling:
    return Llama3Scaling(
        factor=number(options, "factor"),
        low_freq_factor=number(options, "low_freq_factor"),
        high_freq_factor=number(options, "high_freq_factor"),
        original_context=integer(options, "original_max_position_embeddings"),
    )


_SCALINGS: dict[str, Any] = {
    "default": lambda options: None,
    "linear": lambda options: LinearScaling(factor=number(options, "factor")),
    "llama3": _llama3,
}


def integer(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive integer; null stands for the default. Raises ConfigError."""
    value = _present(config, name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}: {value!r} is not a positive integer")
    return value


def number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A positive number; null stands for the default. Raises ConfigError."""
    value = _present(config, name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{name}: {value!r} is not a positive number")
    return float(value)


def _present(config: Mapping[str, Any], name: str, default: float | None) -> Any:
    value = config.get(name)
    if value is None and default is None:
        raise ConfigError(f"{name}: missing")
    return default if value is None else value

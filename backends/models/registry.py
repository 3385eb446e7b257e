"""The architectures that run here. A new one of this family is one function and one line of the table."""

from collections.abc import Callable, Mapping
from typing import Any

from backends.models.config import ConfigError, DecoderConfig, shape


def llama(config: Mapping[str, Any]) -> DecoderConfig:
    """Llama 2 and 3, SmolLM2 and others of the shape."""
    bias = bool(config.get("attention_bias", False))
    return DecoderConfig(
        **shape(config), qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.get("mlp_bias", False))
    )


def qwen2(config: Mapping[str, Any]) -> DecoderConfig:
    """Qwen2 and Qwen2.5: biases on queries, keys and values, none on the output."""
    if config.get("use_sliding_window", False):
        raise ConfigError("use_sliding_window: windowed attention is not supported")
    return DecoderConfig(**shape(config), qkv_bias=True)


ARCHITECTURES: dict[str, Callable[[Mapping[str, Any]], DecoderConfig]] = {  # by `model_type`
    "llama": llama,
    "qwen2": qwen2,
}


def decoder_config(config: Mapping[str, Any]) -> DecoderConfig:
    """From the content of config.json. Raises ConfigError, which names the field."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"model_type: {kind!r} is not supported, only {', '.join(map(repr, ARCHITECTURES))}"
        )
    return ARCHITECTURES[kind](config)

"""The architectures that run here. A new one of this family is one function and one line of the table.

Defaults are those that `transformers` has for the architecture, which configs leave out.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from backends.models.config import ConfigError, DecoderConfig, shape, window_layers
from backends.models.fields import integer, mapping, number, optional_number
from backends.models.ropes import FULL, SLIDING

Config = Mapping[str, Any]


def llama(config: Config) -> DecoderConfig:
    """Llama 2 and 3, SmolLM2 and others of the shape."""
    return DecoderConfig(**shape(config), **_biases(config))


def mistral(config: Config) -> DecoderConfig:
    """Mistral: all layers with a window, where there is one."""
    return DecoderConfig(**shape(config), **_windows(config, _all(config), 4096))


def qwen2(config: Config) -> DecoderConfig:
    """Qwen2 and Qwen2.5: biases on queries, keys and values, none on the output."""
    return DecoderConfig(**shape(config), **_upper_windows(config), qkv_bias=True)


def qwen3(config: Config) -> DecoderConfig:
    """Qwen3: normalised heads, whose size does not follow from the width."""
    common = shape(config, head_dim=128)
    return DecoderConfig(**common, **_upper_windows(config), **_biases(config), head_norms=True)


def smollm3(config: Config) -> DecoderConfig:
    """SmolLM3: every fourth layer knows of no positions; windows, where they are on, are in these layers."""
    layers = _all(config)
    every = integer(config, "no_rope_layer_interval", 4)
    rotated = config.get("no_rope_layers")  # in spite of its name, 1 for layers with a rope
    if rotated is None:
        rotated = [int((layer + 1) % every != 0) for layer in layers]
    if not isinstance(rotated, list) or len(rotated) < len(layers):
        raise ConfigError(f"no_rope_layers: is not a list of {len(layers)} numbers")
    unrotated = [layer for layer in layers if not rotated[layer]]
    windows = _windows(config, unrotated) if config.get("use_sliding_window") else {}
    common = shape(config, tied=True, theta=2000000.0)
    return DecoderConfig(**common, **windows, **_biases(config), unrotated_layers=frozenset(unrotated))


def phi3(config: Config) -> DecoderConfig:
    """Phi-3 and Phi-4 (and their mini models): fused projections, heads rotated in part, LongRoPE."""
    config = {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096, **config}
    return DecoderConfig(**shape(config), **_windows(config, _all(config)), fused_projections=True)


def gemma2(config: Config) -> DecoderConfig:
    """Gemma 2: a window in every other layer, and caps on scores and logits."""
    alternating = _all(config)[::2]
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    return _gemma({"max_position_embeddings": 8192, **caps, **config}, alternating)


def gemma3(config: Config) -> DecoderConfig:
    """Gemma 3's text model: normalised heads, one layer in six without a window and with a theta of its own."""
    every = integer(config, "sliding_window_pattern", integer(config, "_sliding_window_pattern", 6))
    sliding = [layer for layer in _all(config) if (layer + 1) % every]
    config = {"max_position_embeddings": 131072, **_gemma3_ropes(config)}
    return replace(_gemma(config, sliding), head_norms=True)


def _gemma3_ropes(config: Config) -> Config:
    """The config with the ropes by type of layer. The older spelling scales only the layers without a window."""
    parameters = mapping(config, "rope_parameters")
    full = {
        "rope_theta": config.get("rope_theta", 1000000.0),
        **mapping(config, "rope_scaling"),
        **mapping(parameters, FULL),
    }
    sliding = {"rope_theta": config.get("rope_local_base_freq", 10000.0), **mapping(parameters, SLIDING)}
    return {**config, "rope_parameters": {**parameters, FULL: full, SLIDING: sliding}}


def gemma3_wrapper(config: Config) -> DecoderConfig:
    """The text model inside a checkpoint that has eyes too."""
    # The models of 4 B and more leave out what was the default when they were made.
    defaults = {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4}
    return gemma3({**defaults, **mapping(config, "text_config")})


def _gemma(config: Config, sliding: Iterable[int]) -> DecoderConfig:
    if config.get("use_bidirectional_attention"):
        raise ConfigError("use_bidirectional_attention: is not supported")
    config = {"hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096, **config}
    if config["sliding_window"] is None:
        raise ConfigError("sliding_window: null, which no model of this architecture has")
    common = shape(config, tied=True, head_dim=256)
    return DecoderConfig(
        **common,
        **_windows(config, sliding),
        **_biases(config),
        post_norms=True,
        norm_offset=1.0,
        attention_scale=number(config, "query_pre_attn_scalar", 256) ** -0.5,
        attention_cap=optional_number(config, "attn_logit_softcapping"),
        logit_cap=optional_number(config, "final_logit_softcapping"),
        embedding_scale=common["width"] ** 0.5,
    )


def _all(config: Config) -> range:
    return range(integer(config, "num_hidden_layers"))


def _biases(config: Config) -> dict[str, Any]:
    attention, mlp = (bool(config.get(name, False)) for name in ("attention_bias", "mlp_bias"))
    return {"qkv_bias": attention, "output_bias": attention, "mlp_bias": mlp}


def _upper_windows(config: Config) -> dict[str, Any]:
    """Windows from the layer `max_window_layers` on, where they are on at all."""
    if not config.get("use_sliding_window", False):
        return {}
    first = config.get("max_window_layers", 28)
    if not isinstance(first, int) or first < 0:
        raise ConfigError(f"max_window_layers: {first!r} is not a number of layers")
    return _windows(config, _all(config)[first:], 4096)


def _windows(config: Config, layers: Iterable[int], default: int | None = None) -> dict[str, Any]:
    window = config.get("sliding_window", default)
    if window is None:
        return {}
    window = integer({"sliding_window": window}, "sliding_window")
    return {"window": window, "window_layers": window_layers(config, frozenset(layers))}


ARCHITECTURES: dict[str, Callable[[Config], DecoderConfig]] = {  # by `model_type`
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "smollm3": smollm3,
    "phi3": phi3,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gemma3": gemma3_wrapper,
}


def decoder_config(config: Config) -> DecoderConfig:
    """From the content of config.json. Raises ConfigError, which names the field."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"model_type: {kind!r} is not supported, only {', '.join(map(repr, ARCHITECTURES))}"
        )
    return ARCHITECTURES[kind](config)

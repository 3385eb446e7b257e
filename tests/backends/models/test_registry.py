"""config.json in the spellings that are about, and what it must not ask for."""

import math
from typing import Any

import pytest

from backends.layers.rotation import LinearScaling, Llama3Scaling, LongScaling, Rope, YarnScaling
from backends.models.config import ConfigError, DecoderConfig
from backends.models.registry import decoder_config

# The numbers of Llama-3.1-8B and Qwen2.5-7B, as their config.json has them.
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
QWEN: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
# The numbers of Gemma-2-2b as far as they are not the defaults of `transformers`.
GEMMA: dict[str, Any] = {
    "model_type": "gemma2",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "vocab_size": 256000,
}
LONGROPE = {"rope_type": "longrope", "short_factor": [1, 1], "long_factor": [2, 2]}
LLAMA_ROPE = Rope(500000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def test_llama() -> None:
    assert decoder_config(LLAMA) == DecoderConfig(
        layers=32,
        width=4096,
        mlp_width=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab_size=128256,
        max_positions=131072,
        norm_eps=1e-5,
        rope=LLAMA_ROPE,
        tied=False,
    )


def test_qwen2() -> None:
    config = decoder_config(QWEN)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (True, False, False)
    assert (config.head_dim, config.rope) == (128, Rope(1000000.0))


@pytest.mark.parametrize(
    ("name", "fields"),
    [("attention_bias", ["qkv_bias", "output_bias"]), ("mlp_bias", ["mlp_bias"])],
)
def test_biases_of_llama(name: str, fields: list[str]) -> None:
    config = decoder_config({**LLAMA, name: True})
    assert [field for field in ("qkv_bias", "output_bias", "mlp_bias") if getattr(config, field)] == fields


@pytest.mark.parametrize("type_name", ["rope_type", "type"])
@pytest.mark.parametrize("new", [True, False], ids=["rope_parameters", "rope_scaling"])
def test_both_spellings_of_rope(type_name: str, new: bool) -> None:
    scaling = {**without(LLAMA["rope_scaling"], "rope_type"), type_name: "llama3"}
    base = without(LLAMA, "rope_scaling", "rope_theta")
    if new:
        config = {**base, "rope_parameters": {**scaling, "rope_theta": 500000.0}}
    else:
        config = {**base, "rope_scaling": scaling, "rope_theta": 500000.0}
    assert decoder_config(config).rope == LLAMA_ROPE


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rope_scaling": None}, Rope(500000.0)),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, Rope(500000.0, LinearScaling(4.0))),
        ({"rope_scaling": {"rope_type": "default"}}, Rope(500000.0)),
        ({"rope_scaling": None, "rope_theta": None}, Rope(10000.0)),
    ],
)
def test_other_ropes(fields: dict[str, Any], expected: Rope) -> None:
    config = {name: value for name, value in {**LLAMA, **fields}.items() if value is not None}
    assert decoder_config(config).rope == expected


def test_what_old_configs_leave_out() -> None:
    config = decoder_config(without(LLAMA, "num_key_value_heads", "tie_word_embeddings", "rms_norm_eps"))
    assert (config.kv_heads, config.tied, config.norm_eps) == (32, False, 1e-6)


def test_head_dim_may_differ_from_width_over_heads() -> None:
    assert decoder_config({**LLAMA, "head_dim": 64}).head_dim == 64
    assert decoder_config({**LLAMA, "head_dim": None}).head_dim == 128


@pytest.mark.parametrize(
    ("base", "fields", "message"),
    [
        (LLAMA, {"model_type": "mamba"}, "model_type: 'mamba' is not supported, only 'llama', 'mis"),
        (LLAMA, {"model_type": None}, "model_type: None"),
        (LLAMA, {"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
        (LLAMA, {"num_key_value_heads": 5}, "num_key_value_heads: 5 does not divide"),
        (LLAMA, {"head_dim": 63}, "head_dim: 63"),
        (LLAMA, {"hidden_size": "4096"}, "hidden_size: '4096' is not a positive integer"),
        (LLAMA, {"hidden_size": True}, "hidden_size: True"),
        (LLAMA, {"num_hidden_layers": 0}, "num_hidden_layers: 0"),
        (LLAMA, {"vocab_size": None}, "vocab_size: missing"),
        (LLAMA, {"rms_norm_eps": float("nan")}, "rms_norm_eps: nan"),
        (LLAMA, {"rope_theta": -1}, "rope_theta: -1"),
        (LLAMA, {"rope_scaling": "llama3"}, "rope_scaling: 'llama3' is not an object"),
        (LLAMA, {"rope_scaling": {"rope_type": "dynamic", "factor": 4}}, "rope_scaling: type 'dynamic'"),
        (LLAMA, {"rope_parameters": {"rope_type": "proportional"}}, "rope_parameters: type 'proportional'"),
        (LLAMA, {"rope_parameters": {"rope_type": "longrope"}}, "short_factor: None is not a list"),
        (LLAMA, {"rope_parameters": LONGROPE}, "short_factor: has 2 numbers, not 64"),
        (LLAMA, {"rope_parameters": {**LONGROPE, "short_factor": [0]}}, "short_factor: 0 is not a positive"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 2, "mrope_section": []}}, "mrope_section"),
        (
            LLAMA,
            {"rope_parameters": {"full_attention": {}, "other": {}}},
            "rope_parameters.other: is neither",
        ),
        (LLAMA, {"rope_parameters": {"full_attention": 1}}, "full_attention: 1 is not an object"),
        (LLAMA, {"rope_scaling": {"rope_type": "llama3"}}, "factor: missing"),
        (LLAMA, {"partial_rotary_factor": 0.51}, "partial_rotary_factor: 0.51 of a head of 128"),
        (LLAMA, {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        (LLAMA, {"partial_rotary_factor": 0.001}, "partial_rotary_factor"),
        (QWEN, {"use_sliding_window": True, "sliding_window": 0}, "sliding_window: 0"),
        (QWEN, {"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers: -1"),
        (
            QWEN,
            {"use_sliding_window": True, "layer_types": ["full_attention"]},
            "layer_types: is not a list of 28",
        ),
        (QWEN, {"use_sliding_window": True, "layer_types": ["linear"] * 28}, "layer_types: 'linear'"),
        (LLAMA, {"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers: is not a list of 32"),
        (GEMMA, {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (GEMMA, {"sliding_window": None}, "sliding_window: null"),
        (GEMMA, {"model_type": "gemma3", "text_config": None}, "hidden_size: missing|num_.*: missing"),
    ],
)
def test_what_is_not_supported_is_named(base: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decoder_config({**base, **fields})


def test_what_gemma_leaves_out() -> None:
    config = decoder_config(GEMMA)
    assert (config.head_dim, config.max_positions, config.tied, config.activation) == (
        256,
        8192,
        True,
        "gelu",
    )
    assert (config.attention_cap, config.logit_cap, config.attention_scale) == (50.0, 30.0, 1 / 16)
    assert (config.window, config.window_layers) == (4096, frozenset(range(0, 26, 2)))
    assert (config.embedding_scale, config.norm_offset) == (48.0, 1.0)


def test_a_head_of_its_own_beats_the_default_of_the_architecture() -> None:
    assert not decoder_config({**GEMMA, "tie_word_embeddings": False}).tied


@pytest.mark.parametrize(
    ("options", "magnitude"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, (0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
        ({"mscale": 2.0}, 0.1 * math.log(4) + 1),
    ],
)
def test_yarn_as_qwen_instructs(options: dict[str, float], magnitude: float) -> None:
    """Four times the context, though max_position_embeddings stays as it was."""
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, **options}
    config = decoder_config({**QWEN, "rope_scaling": yarn})
    assert config.max_positions == 131072
    assert isinstance(config.rope.scaling, YarnScaling)
    assert config.rope.scaling.factor == 4.0
    assert config.rope.scaling.magnitude == pytest.approx(magnitude)


def test_the_factor_of_longrope_is_how_much_longer_the_context_became() -> None:
    """As Phi-3-mini-128k has it: the original length beside the settings, and the type by its first name."""
    rope = {"type": "su", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    phi = {**LLAMA, "model_type": "phi3", "original_max_position_embeddings": 4096, "rope_scaling": rope}
    config = decoder_config(phi)
    assert isinstance(config.rope.scaling, LongScaling)
    assert config.rope.border == 4096
    assert config.rope.scaling.magnitude == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
    assert decoder_config(LLAMA).rope.border is None

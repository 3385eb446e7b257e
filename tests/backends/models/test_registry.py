"""config.json in the spellings that are about, and what it must not ask for."""

from typing import Any

import pytest

from backends.layers.rope import LinearScaling, Llama3Scaling, Rope
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
        (LLAMA, {"model_type": "mamba"}, "model_type: 'mamba' is not supported, only 'llama', 'qwen2'"),
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
        (LLAMA, {"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_scaling: type 'yarn'"),
        (LLAMA, {"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters: type 'longrope'"),
        (LLAMA, {"rope_scaling": {"rope_type": "llama3"}}, "factor: missing"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA, {"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        (QWEN, {"use_sliding_window": True}, "use_sliding_window"),
    ],
)
def test_what_is_not_supported_is_named(base: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decoder_config({**base, **fields})

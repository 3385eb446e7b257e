"""Ranks that cannot be are refused when the configuration is read, as far as the machine knows the model."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Engine
from gateway.configfile import ConfigError, parse_config
from gateway.ranks import refused

LLAMA = {
    "model_type": "llama",
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 199,
    "max_position_embeddings": 256,
}


def model(folder: Path, **fields: Any) -> str:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **fields}))
    return str(folder)


@pytest.mark.parametrize(
    ("fields", "ranks", "reason"),
    [
        ({}, 1, None),
        ({}, 2, None),
        ({}, 6, None),
        ({}, 4, "4 ranks cannot divide num_attention_heads, 6"),
        ({}, 3, "3 ranks can neither divide num_key_value_heads, 2, nor have the same one each"),
        ({"intermediate_size": 191}, 2, "2 ranks cannot divide intermediate_size, 191"),
        ({"model_type": "unheard of"}, 4, None),  # the engine says so
    ],
)
def test_what_does_not_divide(fields: dict[str, Any], ranks: int, reason: str | None, tmp_path: Path) -> None:
    assert refused(Engine(model=model(tmp_path, **fields), tensor_parallel=ranks)) == reason


def test_a_model_that_is_not_here_is_left_to_the_engine() -> None:
    assert refused(Engine(model="./nowhere", tensor_parallel=5)) is None


def test_one_gpu_is_too_few() -> None:
    assert refused(Engine(model="./nowhere", tensor_parallel=2, device="cuda")) is None
    reason = refused(Engine(model="./nowhere", tensor_parallel=2, device="cuda:1"))
    assert reason == "2 ranks need a GPU each, and device: cuda:1 is one: say cuda"


@pytest.mark.parametrize(
    ("ranks", "mistake"),
    [
        ("4", "4 ranks cannot divide num_attention_heads, 6"),
        ("0", ".*1"),
        ("many", "expected an integer"),
    ],
)
def test_a_configuration_names_the_place(ranks: str, mistake: str, tmp_path: Path) -> None:
    text = f"tiers: [{{name: 7b, engines: [{{model: {model(tmp_path)}, tensor_parallel: {ranks}}}]}}]"
    with pytest.raises(ConfigError, match=rf"1: tiers\[0\]\.engines\[0\]\.tensor_parallel: .*{mistake}"):
        parse_config(text, "f")

"""Bytes of weights, and of keys and values, against first principles."""

import pytest

from backends.models.config import DecoderConfig
from backends.models.registry import decoder_config
from gateway.planning.formats import group, kv_bytes, kv_bytes_per_token, weight_bytes
from gateway.planning.subject import subject


def test_a_70b_in_16_bits_is_138_gb(llama_70b: DecoderConfig) -> None:
    assert weight_bytes(llama_70b, "fp16") / 1e9 == pytest.approx(138, abs=0.1)


def test_packed_weights_carry_their_scales(llama_70b: DecoderConfig) -> None:
    linears = 80 * 8192 * (2 * 8192 + 2 * 1024 + 3 * 28672)
    kept = 2 * (68_976_648_192 - linears)
    rows = 80 * (8192 + 2 * 1024 + 8192 + 2 * 28672 + 8192)
    for format in ("int8", "fp8"):
        assert weight_bytes(llama_70b, format) == linears + 2 * rows + kept
    groups = linears // 128
    assert weight_bytes(llama_70b, "int4") == linears / 2 + groups * 2.5 + kept
    # What published checkpoints in AWQ's layout with groups of 128 take.
    assert weight_bytes(llama_70b, "int4") / 1e9 == pytest.approx(36.6, abs=0.05)


@pytest.mark.parametrize(
    ("name", "heads", "bytes_"),
    [
        ("llama-2-70b", 8, 2 * 80 * 8 * 128 * 2),  # GQA
        ("llama-2-7b", 32, 2 * 32 * 32 * 128 * 2),  # MHA
        ("qwen2.5-7b", 4, 2 * 28 * 4 * 128 * 2),
    ],
)
def test_keys_and_values_of_a_token(name: str, heads: int, bytes_: int) -> None:
    config = subject(name).config
    assert config.kv_heads == heads
    assert kv_bytes_per_token(config, "fp16") == bytes_
    assert kv_bytes(config, 1000, "fp16") == 1000 * bytes_


def test_a_70b_keeps_a_third_of_a_gb_per_1000_tokens(llama_70b: DecoderConfig) -> None:
    assert kv_bytes(llama_70b, 1000, "fp16") / 1e9 == pytest.approx(0.33, abs=0.005)


def test_one_kv_head_is_the_least(llama_7b: DecoderConfig) -> None:
    shape = {"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000}
    others = {"num_attention_heads": 32, "num_key_value_heads": 1, "max_position_embeddings": 4096}
    multi_query = decoder_config({"model_type": "llama", **shape, **others})
    assert kv_bytes_per_token(multi_query, "fp16") * 32 == kv_bytes_per_token(llama_7b, "fp16")


def test_eight_and_four_bits_have_a_scale_for_each_token_and_head(llama_70b: DecoderConfig) -> None:
    for format, each in (("int8", 128 + 4), ("fp8", 128 + 4), ("int4", 64 + 4)):
        assert kv_bytes_per_token(llama_70b, format) == 2 * 80 * 8 * each


def test_windows_keep_no_more_than_they_see() -> None:
    config = subject("mistral-7b-v0.1").config
    each = kv_bytes_per_token(config, "fp16")
    assert kv_bytes(config, 4000, "fp16") == 4000 * each
    assert kv_bytes(config, 16000, "fp16") == 4096 * each


def test_groups_divide_what_they_are_groups_of() -> None:
    assert group(subject("llama-2-7b").config) == 128
    assert group(subject("smollm2-135m").config) == 64  # 576 columns
    odd = {"num_hidden_layers": 1, "hidden_size": 80, "intermediate_size": 96, "vocab_size": 99}
    heads = {"num_attention_heads": 4, "max_position_embeddings": 64}
    with pytest.raises(ValueError, match="^int4: groups of 32 do not divide the widths 80, 80, 96$"):
        group(decoder_config({"model_type": "llama", **odd, **heads}))

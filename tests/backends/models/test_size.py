"""Counts of weights against `transformers`, of cached tokens and attended pairs against counting one by one."""

from typing import Any

import pytest
import torch

from backends.models.registry import ARCHITECTURES, decoder_config
from backends.models.size import attended_pairs, cached_tokens, weights

TINY = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 199,
    "max_position_embeddings": 256,
}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("mistral", {"num_key_value_heads": 6}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    ("qwen3", {"attention_bias": True}),
    ("smollm3", {"pad_token_id": 0}),
    ("smollm3", {"pad_token_id": 0, "tie_word_embeddings": False, "mlp_bias": True}),
    ("phi3", {"pad_token_id": 0}),
    ("gemma2", {}),
    ("gemma3_text", {}),
    ("gemma3", {}),
]


@pytest.mark.parametrize(("kind", "fields"), MODELS)
def test_parameters_are_those_that_transformers_counts(kind: str, fields: dict[str, Any]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    own = AutoConfig.for_model("gemma3_text" if kind == "gemma3" else kind, **{**TINY, **fields})
    with torch.device("meta"):
        oracle = AutoModelForCausalLM.from_config(own)
    written = own.to_dict() if kind != "gemma3" else {"model_type": kind, "text_config": own.to_dict()}
    assert weights(decoder_config(written)).total == oracle.num_parameters()


def test_every_architecture_is_counted() -> None:
    assert {kind for kind, _ in MODELS} == set(ARCHITECTURES)


@pytest.mark.parametrize("tokens", [1, 4, 5, 6, 20])
def test_a_window_is_counted_no_further_than_it_sees(tokens: int) -> None:
    config = decoder_config(
        {
            "model_type": "qwen2",
            **TINY,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        }
    )
    assert config.window_layers == {1, 2}
    seen = [[min(place + 1, limit) for place in range(tokens)] for limit in (tokens, 5, 5)]
    assert attended_pairs(config, tokens) == sum(map(sum, seen))
    assert cached_tokens(config, tokens) == sum(each[-1] for each in seen)

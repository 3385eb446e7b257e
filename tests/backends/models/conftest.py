"""Small random models of `transformers`, saved to disk: the oracle, and the checkpoint to load."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

Saved = tuple[Path, Any]


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Small models gain nothing from more, and wait for their threads where the machine has other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def save_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Saved]:
    """`save_model("llama", **fields of the config)` → its folder and the float32 model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    def save(kind: str, **fields: Any) -> Saved:
        defaults = {
            "hidden_size": 128,
            "intermediate_size": 192,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "vocab_size": 199,
            "max_position_embeddings": 256,
        }
        fields = {**defaults, **fields}
        # Far from zero, so that a wrong mask or rotation shows.
        config = AutoConfig.for_model(kind, **fields, initializer_range=2 * fields["hidden_size"] ** -0.5)
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        for name, parameter in model.named_parameters():
            # Zeros and ones when fresh: their place would not matter.
            if name.endswith(("bias", "norm.weight")):
                torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
        folder = tmp_path_factory.mktemp(kind)
        model.save_pretrained(folder)
        return folder, model

    return save

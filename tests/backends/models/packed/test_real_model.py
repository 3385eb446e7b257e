"""A real model in words and in bytes, through the loader."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from backends.kernels.layout import KVCache, Layout, Span
from backends.models.checkpoint import Checkpoint, open_checkpoint
from backends.models.decoder import kernels_of
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config
from backends.models.stored import Stored, StoredTensor
from tests.backends.models.packed.cases import CASES, Tensors
from tests.backends.models.packed.conftest import Round

CPU, IDS = torch.device("cpu"), torch.tensor([504, 4649, 4642, 353, 260, 216, 11, 28])


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.parametrize("case", ["awq 64", "int8 rows"])
def test_logits_are_those_of_the_weights_that_are_meant(
    case: str, smollm2_folder: Path, to_grouped: Round, tmp_path: Path
) -> None:
    source = open_checkpoint(smollm2_folder)
    packed: Tensors = {}
    whole: dict[str, Stored] = {}
    for name in source.names():
        weight = source.load(name, torch.float32)
        if "_proj.weight" in name:
            tensors, weight = CASES[case].pack(weight, to_grouped)
            packed |= {f"{name.removesuffix('weight')}{suffix}": each for suffix, each in tensors.items()}
        else:
            packed[name] = weight.to(torch.bfloat16)
            weight = packed[name].float()
        whole[name] = in_memory(weight)
    save_file({name: each.contiguous() for name, each in packed.items()}, tmp_path / "model.safetensors")
    config = {**source.config, "quantization_config": dict(CASES[case].settings)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    meant = logits(Checkpoint(tmp_path, source.config, {}, whole))
    torch.testing.assert_close(logits(open_checkpoint(tmp_path)), meant, rtol=1e-4, atol=1e-4)


def in_memory(weight: torch.Tensor) -> StoredTensor:
    return StoredTensor("F32", tuple(weight.shape), lambda: weight.contiguous().view(torch.uint8))


def logits(checkpoint: Checkpoint) -> torch.Tensor:
    config = decoder_config(checkpoint.config)
    model = load_decoder(checkpoint, config, torch.float32, CPU)
    cache = KVCache(config.layers, 1, 16, config.kv_heads, config.head_dim, dtype=torch.float32, device=CPU)
    with torch.inference_mode():
        layout = Layout([Span(0, len(IDS), [0], 0)], cache)
        return model.forward(IDS, layout, torch.arange(len(IDS)), kernels_of(config, cache, 16))

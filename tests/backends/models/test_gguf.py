"""GGUF files as Hugging Face checkpoints; transformers' own reading of the same file is the oracle."""

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from backends.models.checkpoint import open_checkpoint
from backends.models.stored import CheckpointError

WriteGguf = Callable[..., Path]


def interleaved(weights: torch.Tensor, heads: int) -> torch.Tensor:
    """What llama.cpp's converter does to queries and keys (`LlamaModel.permute` of convert_hf_to_gguf.py)."""
    halves = weights.reshape(heads, 2, len(weights) // heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


@pytest.mark.parametrize("type", ["Q4_1", "Q8_0", "F16", "BF16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_tensors_come_under_their_names_in_their_order(
    tmp_path: Path, write_gguf: WriteGguf, architecture: str, type: str
) -> None:
    """Against the gguf package's reading of the file, and the converter's way with the rows of queries and keys."""
    path = write_gguf(tmp_path / "model.gguf", architecture, type)
    checkpoint = open_checkpoint(path)
    for tensor in gguf.GGUFReader(path).tensors:
        name = hf_name(tensor.name)
        ours = checkpoint.load(name, torch.float32)
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        if architecture == "llama" and heads:
            ours = interleaved(ours, heads)
        np.testing.assert_array_equal(ours, gguf.quants.dequantize(tensor.data, tensor.tensor_type), name)


def hf_name(name: str) -> str:
    for ours, theirs in [
        ("blk.", "model.layers."),
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_output", "self_attn.o_proj"),
        ("attn_", "self_attn."),
        ("ffn_", "mlp."),
    ]:
        name = name.replace(ours, theirs)
    name = re.sub(r"(self_attn\.[qkv]|mlp\.\w+?)\.", r"\1_proj.", name)
    return re.sub(r"^output\.", "lm_head.", name)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_transformers_builds_the_model_from_config_and_tensors(
    tmp_path: Path, write_gguf: WriteGguf, architecture: str
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    checkpoint = open_checkpoint(write_gguf(tmp_path / "model.gguf", architecture))
    config = AutoConfig.for_model(**checkpoint.config)
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict({name: checkpoint.load(name, torch.float32) for name in checkpoint.names()})
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    assert (config.num_key_value_heads, config.max_position_embeddings) == (2, 128)
    assert config.rms_norm_eps == pytest.approx(1e-5)


def test_one_file_may_tie_its_head(tmp_path: Path, write_gguf: WriteGguf) -> None:
    untied = open_checkpoint(write_gguf(tmp_path / "a.gguf"))
    tied = open_checkpoint(write_gguf(tmp_path / "b.gguf", leave_out=frozenset({"output.weight"})))
    assert (untied.config["tie_word_embeddings"], tied.config["tie_word_embeddings"]) == (False, True)
    assert "lm_head.weight" in untied.names() and "lm_head.weight" not in tied.names()


def test_every_token_that_ends_an_answer_is_named(tmp_path: Path, write_gguf: WriteGguf) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "a.gguf"))
    end = checkpoint.config["eos_token_id"]
    assert checkpoint.generation["eos_token_id"] == [end, end - 2]  # <|im_end|>, <|endoftext|>


def llama3_factors(factor: float, head_dim: int, theta: float) -> np.ndarray:
    """Llama 3's rule as its paper's code has it: by wavelength, one frequency after the other."""
    factors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192 / 1:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def test_llama3_scaling_is_recognised_in_its_factors(tmp_path: Path, write_gguf: WriteGguf) -> None:
    factors = llama3_factors(32.0, head_dim=16, theta=10000.0)
    assert 1 < len(set(factors.tolist())) <= 8
    checkpoint = open_checkpoint(write_gguf(tmp_path / "a.gguf", extra={"rope_freqs.weight": factors}))
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert not any("rope" in name for name in checkpoint.names())


def test_linear_and_yarn_scaling(tmp_path: Path, write_gguf: WriteGguf) -> None:
    keys: dict[str, Any] = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    linear = open_checkpoint(write_gguf(tmp_path / "a.gguf", metadata=keys))
    assert linear.config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    keys |= {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 32}
    yarn = open_checkpoint(write_gguf(tmp_path / "b.gguf", metadata=keys))
    assert yarn.config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba' is not supported; supported are llama, qwen2, "),
        ({"format": "TQ2_0"}, "tensor token_embd.weight: tensor type TQ2_0 is not supported"),
        ({"metadata": {"llama.block_count": None}}, "metadata 'block_count' is missing"),
        ({"metadata": {"llama.attention.head_count": 0}}, "by zero"),
        ({"metadata": {"llama.attention.head_count": "4"}}, "unsupported operand"),
        ({"metadata": {"llama.rope.dimension_count": 8}}, "rotating a part of a head"),
        ({"metadata": {"llama.rope.scaling.type": "longrope"}}, "'longrope' is not supported"),
        (
            {"extra": {"blk.0.ssm_in.weight": np.zeros((2, 2), np.float32)}},
            "blk.0.ssm_in.weight has no place",
        ),
        (
            {"extra": {"rope_freqs.weight": np.linspace(1, 9, 8, dtype=np.float32)}},
            "not made by Llama 3's rule",
        ),
        ({"extra": {"blk.7.attn_q.weight": np.zeros((6, 64), np.float32)}}, "6 rows of queries or keys"),
    ],
)
def test_refuses_by_name(
    tmp_path: Path, write_gguf: WriteGguf, options: dict[str, Any], message: str
) -> None:
    if options.get("format") == "TQ2_0":  # rows of 64 cannot be written in it
        path = relabelled(write_gguf(tmp_path / "model.gguf", format="F16"))
    else:
        path = write_gguf(tmp_path / "model.gguf", **options)
    with pytest.raises(CheckpointError, match=message) as error:
        open_checkpoint(path)
    assert str(path) in str(error.value)


def relabelled(path: Path) -> Path:
    """The same file, whose embedding claims to be of the type with the number 35, TQ2_0."""
    data = bytearray(path.read_bytes())
    at = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 2 * 8
    data[at] = 35
    path.write_bytes(data)
    return path


def test_every_cut_is_noticed(tmp_path: Path, write_gguf: WriteGguf) -> None:
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [0, 3, 4, 8, 20, 100, 1000, len(whole) // 2, len(whole) - 4096]:
        cut.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="cut.gguf: "):
            open_checkpoint(cut)


def test_no_damage_to_the_header_does_worse_than_an_error(tmp_path: Path, write_gguf: WriteGguf) -> None:
    """Counts and lengths that a damaged file claims are never believed: no hang, no huge allocation, no other error."""
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    header = whole.index(b"token_embd.weight") + 200
    random = np.random.default_rng(5)
    damaged = tmp_path / "damaged.gguf"
    failures = 0
    for at in random.choice(header, 300, replace=False):
        data = bytearray(whole)
        data[at] ^= 1 << random.integers(8)
        damaged.write_bytes(data)
        try:
            open_checkpoint(damaged)
        except CheckpointError:
            failures += 1
    assert failures > 10


def test_reads_as_much_as_it_is_asked_for(tmp_path: Path, write_gguf: WriteGguf) -> None:
    """The file may go once it is open: tensors are mapped, not loaded at opening."""
    path = write_gguf(tmp_path / "model.gguf")
    checkpoint = open_checkpoint(path)
    shutil.move(path, tmp_path / "elsewhere")
    assert checkpoint.load("model.norm.weight", torch.bfloat16).dtype == torch.bfloat16

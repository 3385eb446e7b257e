"""Folders of safetensors files: what is read, what is ignored, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from backends.models.checkpoint import GGUF_BLOCKS, CheckpointError, GgufBlocks, open_checkpoint

CONFIG = {"model_type": "llama", "hidden_size": 4, "auto_map": {"AutoConfig": "evil.Config"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_one_file(folder: Path) -> None:
    weights = torch.arange(8, dtype=torch.bfloat16).view(2, 4)
    save_file({"a.weight": weights, "b.bias": torch.ones(3)}, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config == CONFIG
    assert checkpoint.generation == {}
    assert checkpoint.names() == {"a.weight", "b.bias"}
    assert torch.equal(checkpoint.load("a.weight", torch.float32), weights.float())
    assert checkpoint.load("b.bias", torch.float16).dtype == torch.float16
    with pytest.raises(CheckpointError, match="tensor c.weight is missing"):
        checkpoint.load("c.weight", torch.float32)


def test_the_end_tokens_of_generation_config(folder: Path) -> None:
    save_file({"a": torch.ones(1)}, folder / "model.safetensors")
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert open_checkpoint(folder).generation == {"eos_token_id": [1, 2]}


def test_the_index_alone_says_where_a_tensor_is(folder: Path) -> None:
    """Shards with more than the index promises, and files beside it, must not overwrite the right weights."""
    save_file({"a": torch.full((2,), 1.0), "b": torch.full((2,), 99.0)}, folder / "one.safetensors")
    save_file({"b": torch.full((2,), 2.0)}, folder / "two.safetensors")
    save_file({"a": torch.full((2,), 99.0), "c": torch.ones(1)}, folder / "model.safetensors")
    (folder / "consolidated.safetensors").write_bytes(b"damaged")
    write_index(folder, {"a": "one.safetensors", "b": "two.safetensors"})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.names() == {"a", "b"}
    assert checkpoint.load("a", torch.float32).tolist() == [1.0, 1.0]
    assert checkpoint.load("b", torch.float32).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "file", ["../outside.safetensors", "/etc/passwd", "sub/one.safetensors", "..", "", "a.bin"]
)
def test_the_index_cannot_lead_out_of_the_folder(folder: Path, file: str) -> None:
    save_file({"a": torch.ones(1)}, folder.parent / "outside.safetensors")
    write_index(folder, {"a": file})
    with pytest.raises(CheckpointError, match=r"index.json: .* is not a safetensors file of this folder"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "gone.safetensors"}, "gone.safetensors: "),
        ({"z": "one.safetensors"}, "one.safetensors: tensor z is missing, though the index promises it"),
        ({}, "weight_map is missing or empty"),
        ("one.safetensors", "weight_map is missing or empty"),
    ],
)
def test_an_index_that_is_wrong(folder: Path, weight_map: Any, message: str) -> None:
    save_file({"a": torch.ones(1)}, folder / "one.safetensors")
    write_index(folder, weight_map)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_quantised_rows_are_expanded_when_they_are_asked_for(folder: Path) -> None:
    weights = np.random.default_rng(1).standard_normal((3, 64), dtype=np.float32)
    raw = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q4_1)
    blocks = {GGUF_BLOCKS: msgspec.json.encode({"q": GgufBlocks("Q4_1", (3, 64))}).decode()}
    save_file({"q": torch.from_numpy(raw)}, folder / "model.safetensors", metadata=blocks)
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.stored("q").type, checkpoint.stored("q").shape) == ("Q4_1", (3, 64))
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q4_1)
    np.testing.assert_array_equal(checkpoint.load("q", torch.float32), expected)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (
            '{"q": {"type": "Q4_1", "shape": [3, 96]}}',
            r"tensor q: U8 \(3, 40\) does not hold \(3, 96\) in Q4_1",
        ),
        ('{"q": {"type": "Q9_9", "shape": [3, 64]}}', "tensor type Q9_9 is not supported"),
        ('{"q": {"type": "Q4_1"}}', "missing required field `shape`"),
        ("[]", "Expected `object`"),
        ("{", "truncated"),
    ],
)
def test_what_is_said_of_the_rows_must_fit_them(folder: Path, blocks: str, message: str) -> None:
    rows = torch.zeros(3, 40, dtype=torch.uint8)
    save_file({"q": rows}, folder / "model.safetensors", metadata={GGUF_BLOCKS: blocks})
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_a_buffer_of_another_type_fails_only_if_it_is_wanted(folder: Path) -> None:
    save_file({"a": torch.ones(1), "steps": torch.ones(1, dtype=torch.int64)}, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.load("a", torch.float32).tolist() == [1.0]
    with pytest.raises(CheckpointError, match="tensor steps: tensor type I64 is not supported"):
        checkpoint.load("steps", torch.float32)


def test_pickled_weights_are_refused_by_name(folder: Path) -> None:
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickled weights are refused: pytorch_model.bin"):
        open_checkpoint(folder)
    with pytest.raises(CheckpointError, match="pytorch_model.bin: pickled weights can run code"):
        open_checkpoint(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 64, b"\x10\0\0\0\0\0\0\0{}", (1 << 40).to_bytes(8, "little")]
)
def test_damaged_weights_are_named(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="model.safetensors: "):
        open_checkpoint(folder)


def test_a_cut_download_is_noticed(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({"a": torch.ones(4096)}, path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="model.safetensors: "):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": NaN'])
def test_a_damaged_config_is_named(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match="config.json: "):
        open_checkpoint(folder)


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="config.json: "):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="no such model file or folder"):
        open_checkpoint(tmp_path / "absent.gguf")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(CheckpointError, match="neither a folder nor a .gguf file"):
        open_checkpoint(tmp_path / "notes.txt")

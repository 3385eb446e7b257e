"""Files for peers hold the same model: read back, every tensor is what it was, as its format has it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from backends.models.checkpoint import open_checkpoint
from benchmarks.peers import weights


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize(("type", "error"), [("BF16", 0.004), ("Q8_0", 0.02), ("Q4_0", 0.2)])
def test_a_gguf_file_holds_the_same_model(
    architecture: str,
    type: str,
    error: float,
    tmp_path: Path,
    write_gguf: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weights, "FOLDER", tmp_path / "made")
    file = write_gguf(tmp_path / "tiny", architecture, format="F32").rename(tmp_path / "tiny.gguf")
    ours, theirs = open_checkpoint(file), open_checkpoint(weights.gguf_file(file, type))
    assert theirs.names() == ours.names()
    for name in ours.names():
        exact, read = ours.load(name, torch.float32), theirs.load(name, torch.float32)
        assert (read - exact).norm() <= error * exact.norm(), name
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta", "rms_norm_eps"):
        assert theirs.config[key] == pytest.approx(ours.config[key]), key

"""Loading never holds a second copy of a model, in a process of its own whose memory is limited."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from backends.instructions import cpu_has_avx2

LAYERS, WIDTH, MLP = 4, 1024, 4096
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "intermediate_size": MLP,
    "num_hidden_layers": LAYERS, "num_attention_heads": 16, "vocab_size": 128, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128},
}  # fmt: skip
SHAPES = {
    **{f"self_attn.{side}_proj": (WIDTH, WIDTH) for side in "qkvo"},
    **{f"mlp.{side}_proj": (MLP, WIDTH) for side in ("gate", "up")},
    "mlp.down_proj": (WIDTH, MLP),
}
WEIGHTS = LAYERS * sum(rows * columns for rows, columns in SHAPES.values())
COMPILE = """
import torch
from backends.layers.linear import linear
from backends.quantization.int4 import rounded

linear(rounded(torch.ones(8, 32)))(torch.ones(1, 32))
linear(torch.ones(8, 32), format="int8")(torch.ones(1, 32))
"""
LOAD = """
import resource, sys, torch
from pathlib import Path
from backends.layers.linear import linear
from backends.models.checkpoint import open_checkpoint
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config
from backends.quantization.int4 import rounded

torch.set_num_threads(1)
if sys.argv[2] != "none":  # what is loaded on first use
    linear(rounded(torch.ones(8, 32)))(torch.ones(1, 32))
    linear(torch.ones(8, 32), format="int8")(torch.ones(1, 32))
checkpoint = open_checkpoint(Path(sys.argv[1]))
held = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (held + int(sys.argv[3]),) * 2)
load_decoder(
    checkpoint, decoder_config(checkpoint.config), torch.float32, torch.device("cpu"), quantization=sys.argv[2]
)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """67 million weights in AWQ's layout."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {"model.embed_tokens.weight": torch.ones(128, WIDTH), "model.norm.weight": torch.ones(WIDTH)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{name}.weight"] = torch.ones(WIDTH)
        for name, (rows, columns) in SHAPES.items():
            tensors[f"{prefix}.{name}.qweight"] = torch.randint(
                -(1 << 31), 1 << 31, (columns, rows // 8)
            ).int()
            tensors[f"{prefix}.{name}.qzeros"] = torch.zeros(columns // 128, rows // 8, dtype=torch.int32)
            tensors[f"{prefix}.{name}.scales"] = torch.full((columns // 128, rows), 0.01).half()
    save_file(tensors, folder / "model.safetensors")
    return folder


def load(folder: Path, quantization: str, room: float) -> "subprocess.CompletedProcess[str]":
    """In so many bytes; pages of the file, which the kernel may take back, are not counted."""
    command = [sys.executable, "-c", LOAD, str(folder), quantization, str(int(room))]
    # What is freed goes back at once: what the allocator keeps differs from run to run.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def compiled() -> None:
    """Which takes more memory than the model."""
    if not cpu_has_avx2():
        pytest.skip("int4 needs a CPU with AVX2")
    subprocess.run([sys.executable, "-c", COMPILE], check=True)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("quantization", "bytes"), [("none", 4.0), ("auto", 0.5 + 4 / 32)])
def test_a_model_loads_in_the_room_of_itself_and_one_linear(
    quantization: str, bytes: float, folder: Path
) -> None:
    """`bytes`: of a weight as it is kept."""
    model, largest = WEIGHTS * bytes, 4 * 2 * MLP * WIDTH
    enough, little = (load(folder, quantization, room) for room in (model + largest, 0.9 * model))
    assert enough.returncode == 0, enough.stderr
    assert "allocate memory" in little.stderr


@pytest.mark.usefixtures("compiled")
def test_a_large_vocabulary_is_never_whole_in_float32(tmp_path: Path) -> None:
    """Its embedding stays as it is in the file, and its head is rounded a few rows at a time: of a weight there are two
    bytes of the one, and of the other one, twice while it is put in order; the fifth is for a layer."""
    vocabulary = 64 * WIDTH
    config = {key: value for key, value in CONFIG.items() if key != "quantization_config"}
    config |= {"num_hidden_layers": 1, "vocab_size": vocabulary}
    (tmp_path / "config.json").write_text(json.dumps(config))
    embedding = torch.randn(vocabulary, WIDTH).bfloat16()
    tensors = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(WIDTH)}
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"model.layers.0.{name}.weight"] = torch.ones(WIDTH)
    for name, shape in SHAPES.items():
        tensors[f"model.layers.0.{name}.weight"] = torch.ones(shape).bfloat16()
    save_file(tensors, tmp_path / "model.safetensors")
    weights = vocabulary * WIDTH
    enough, little = (load(tmp_path, "int8", bytes * weights) for bytes in (5, 2.5))
    assert enough.returncode == 0, enough.stderr
    assert "allocate memory" in little.stderr

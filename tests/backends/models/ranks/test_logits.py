"""Two and three ranks, each a process: their logits are those of one, for every architecture and every format.

The ranks live as long as the tests and load one model after another.
"""

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.engine.parallel.leader import Workers
from backends.engine.runner import ModelRunner, load_model
from backends.kernels.layout import Span
from backends.models.checkpoint import GGUF_BLOCKS
from backends.models.registry import ARCHITECTURES
from backends.quantization.gguf import FORMATS, row_bytes
from backends.wire import EngineConfig

LENGTH = 100
VOCABULARY = 190  # of 199 rows, which neither 2 nor 3 divides
SHAPE = {"num_attention_heads": 12, "num_key_value_heads": 6, "head_dim": 16, "hidden_size": 192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}
PHI = {"original_max_position_embeddings": 64, "pad_token_id": 0}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.2] * 8, "long_factor": [3.0] * 8}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one head of keys for all": ("llama", {"num_attention_heads": 6, "num_key_value_heads": 1}),
    "llama, as many heads of keys as of queries": ("llama", {"num_key_value_heads": 12}),
    "mistral": ("mistral", {"sliding_window": 24}),
    "qwen2": ("qwen2", {"rope_parameters": YARN}),
    "qwen2, windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"attention_bias": True}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "pad_token_id": 0}),
    "phi3": ("phi3", {**PHI, "sliding_window": 30}),
    "phi3, longrope": ("phi3", {**PHI, "rope_parameters": LONGROPE}),
    "gemma2": ("gemma2", {"sliding_window": 24, "query_pre_attn_scalar": 50}),
    "gemma3": ("gemma3_text", {"sliding_window": 24}),
}
Save = Callable[..., tuple[Path, Any]]


def config_of(folder: Path, **fields: Any) -> EngineConfig:
    defaults = {"dtype": "float32", "kv_blocks": 16, **fields}
    return EngineConfig(name="e", model=str(folder), socket="", vocabulary="", **defaults)


def logits(runner: ModelRunner) -> torch.Tensor:
    """Of a prompt in chunks beside another one, and of decoding."""
    draw = random.Random(2)
    ids, other = draw.choices(range(VOCABULARY), k=LENGTH), draw.choices(range(VOCABULARY), k=20)
    blocks, shift = list(range(9, 2, -1)), 256 if runner.border is not None else 0
    parts, start = [], 0
    for count in (40, LENGTH - 42, 1, 1):
        spans, tokens = [Span(start, count, blocks, shift)], ids[start : start + count]
        if start == 0:
            spans, tokens = [*spans, Span(0, 20, [0, 1])], tokens + other
        with torch.inference_mode():
            parts.append(runner.forward(torch.tensor(tokens), runner.layout(spans), np.arange(len(tokens))))
        start += count
    return torch.cat(parts)


def both(workers: Workers, config: EngineConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of all ranks together, and of one alone, which comes first: what it compiles, the ranks find done."""
    wanted = logits(ModelRunner(load_model(config, VOCABULARY).model, config))
    assert wanted.shape == (LENGTH + 20, VOCABULARY) and wanted.std() > 0.3
    among, _ = workers.load(msgspec.structs.replace(config, tensor_parallel=workers.ranks), VOCABULARY)
    return logits(among), wanted


def test_every_architecture_is_here() -> None:
    assert {kind for kind, _ in MODELS.values()} | {"gemma3"} == set(ARCHITECTURES)


@pytest.mark.parametrize(("kind", "fields"), MODELS.values(), ids=list(MODELS))
def test_logits_are_those_of_one_rank(
    kind: str, fields: dict[str, Any], workers: Workers, save_model: Save
) -> None:
    ours, wanted = both(workers, config_of(save_model(kind, **{**SHAPE, **fields})[0]))
    torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("kind", ["qwen2", "phi3"])
def test_integers_are_those_of_one_rank(
    kind: str, quantization: str, workers: Workers, save_model: Save
) -> None:
    """Bit by bit: nothing is added up in another order. Four bits round what floating point only moves."""
    fields = PHI if kind == "phi3" else {}
    folder = save_model(kind, **{**SHAPE, **fields})[0]
    ours, wanted = both(workers, config_of(folder, quantization=quantization))
    assert torch.equal(ours, wanted)


def test_bfloat16_stays_close(workers: Workers, save_model: Save) -> None:
    """Sums of parts are rounded once more."""
    ours, wanted = both(workers, config_of(save_model("gemma3_text", **SHAPE)[0], dtype="bfloat16"))
    assert (ours.float() - wanted.float()).norm() < 0.05 * wanted.float().norm()


BLOCKS = [type for type, format in FORMATS.items() if format.expand is not None]


def test_formats_of_files(workers: Workers, save_model: Save, tmp_path: Path) -> None:
    """All of them expanded to floating point, each in a layer of its own."""
    in_blocks(save_wide(save_model, len(FORMATS)), tmp_path, list(FORMATS))
    ours, wanted = both(workers, config_of(tmp_path))
    torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)


def test_formats_of_files_in_integers(workers: Workers, save_model: Save, tmp_path: Path) -> None:
    """Four bits as they are, the others in eight."""
    in_blocks(save_wide(save_model, len(BLOCKS)), tmp_path, BLOCKS)
    ours, wanted = both(workers, config_of(tmp_path, quantization="auto"))
    assert torch.equal(ours, wanted)


def save_wide(save_model: Save, layers: int) -> Path:
    """Rows that lead out of attention and MLP have three blocks of 256 weights: two ranks cut the second one."""
    shape = {"head_dim": 64, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": layers}
    return save_model("qwen3", **{**SHAPE, **shape})[0]


def in_blocks(folder: Path, to: Path, types: list[str]) -> None:
    """A copy of a checkpoint whose matrices are random blocks, of one of `types` in each layer."""
    tensors, blocks = load_file(folder / "model.safetensors"), {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            layer = re.search(r"layers\.(\d+)", name)
            type = types[int(layer[1])] if layer else "Q8_0"
            blocks[name] = {"type": type, "shape": list(tensor.shape)}
            tensors[name] = random_blocks(type, tensor)
    (to / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(tensors, to / "model.safetensors", {GGUF_BLOCKS: json.dumps(blocks)})


def random_blocks(type: str, like: torch.Tensor) -> torch.Tensor:
    """Random integers everywhere, and where scales lie halves that make weights of everyday size."""
    format = FORMATS[type]
    if format.dtype is not None:
        return like.to(format.dtype).view(torch.uint8)
    raw = torch.randint(0, 256, (len(like), row_bytes(type, like.shape[1])), dtype=torch.uint8)
    scales = {"Q6_K": [208], "Q4_0": [0], "Q5_0": [0], "Q8_0": [0]}.get(type, [0, 2])
    size = {"Q8_0": 1e-3, "Q4_K": 3e-4, "Q5_K": 2e-4, "Q6_K": 5e-5}.get(type, 1e-2)
    halves = (torch.rand(raw.numel() // format.bytes, 1) * size).half().view(torch.uint8)
    for at in scales:
        raw.view(-1, format.bytes)[:, at : at + 2] = halves
    return raw


@pytest.mark.parametrize("workers", [2], indirect=True, ids=["two ranks"])
def test_a_rank_reads_its_own_part_and_no_more(workers: Workers, save_model: Save, tmp_path: Path) -> None:
    """At its peak it has half of the weights in float32, and what it has read of the file, in bfloat16: half of most
    tensors, but all pages of those that are cut along their columns."""
    weights = write_large(tmp_path)
    pids = [os.getpid(), *workers.pids]
    workers.load(config_of(save_model("llama", **SHAPE)[0], tensor_parallel=2))
    before = [memory(pid, "VmRSS") for pid in pids]
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew, see proc(5)
    workers.load(config_of(tmp_path, tensor_parallel=2))
    for pid, least in zip(pids, before, strict=True):
        grown = (memory(pid, "VmHWM") - least) / (4 * weights)
        print(f"peak {grown:.2f} of the model in float32")
        assert grown < 0.92  # 1 with the whole file read, and 1.5 with whole tensors expanded


def write_large(folder: Path) -> int:
    """Some 80 million weights in bfloat16; how many exactly."""
    heads, layers = {"num_attention_heads": 12, "num_key_value_heads": 12}, 6
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": layers, "vocab_size": 16384}
    more = {"model_type": "llama", "max_position_embeddings": 256, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(heads | sizes | more))
    shapes = {"model.embed_tokens": (16384, 768), "lm_head": (16384, 768), "model.norm": (768,)}
    for layer in (f"model.layers.{number}" for number in range(layers)):
        shapes |= {f"{layer}.self_attn.{side}_proj": (768, 768) for side in "qkvo"}
        shapes |= {f"{layer}.mlp.{side}_proj": (3072, 768) for side in ("gate", "up")}
        shapes |= {f"{layer}.{norm}_layernorm": (768,) for norm in ("input", "post_attention")}
        shapes[f"{layer}.mlp.down_proj"] = (768, 3072)
    tensors = {
        f"{name}.weight": torch.full(shape, 0.01, dtype=torch.bfloat16) for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    return sum(tensor.numel() for tensor in tensors.values())


def memory(pid: int, field: str) -> int:
    """Bytes, see proc(5)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return 1024 * int(kilobytes)

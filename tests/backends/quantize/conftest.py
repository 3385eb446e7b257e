"""Small random models of any architecture, and their logits."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from backends.kernels.layout import KVCache, Layout, Span
from backends.kernels.reference import Kernels
from backends.layers.linear import Linear
from backends.models.checkpoint import open_checkpoint
from backends.models.decoder import kernels_of
from backends.models.loader import block_of, load_decoder
from backends.models.registry import decoder_config
from backends.quantize.job import Order, quantize
from backends.quantize.settings import settings

CPU = torch.device("cpu")
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 199,
    "max_position_embeddings": 256,
    "torch_dtype": "float16",
}
MakeModel = Callable[..., Path]
Logits = Callable[[Path, Sequence[int]], torch.Tensor]
Quantized = Callable[[Mapping[str, Mapping[str, Any]]], dict[str, Path]]


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Small models gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class _Invented:
    """Gives `block_of` random weights and keeps them by name. Some inputs are loud, as in real models."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def norm(self, name: str, width: int) -> torch.Tensor:
        return self._add(name, torch.exp(torch.randn(width) * 0.7))

    def norms(self, names: Sequence[str], width: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = (self.norm(f"{name}.weight", width) for name in names)
        return first, second

    def fused(self, names: Sequence[str], rows: Sequence[int], columns: int, bias: bool) -> Linear:
        for name, count in zip(names, rows, strict=True):
            # Small enough that errors add up and do not breed.
            self._add(f"{name}.weight", torch.randn(count, columns) * 0.5 * columns**-0.5)
            if bias:
                self._add(f"{name}.bias", torch.randn(count) * 0.3)
        return lambda x: x

    def _add(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        self.tensors[name] = tensor.half()  # as it is stored, so that only quantising loses anything
        return tensor


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """`make_model("qwen2", **fields of the config)`: a folder, without a tokenizer."""

    def make(kind: str, **fields: Any) -> Path:
        config = {"model_type": kind, **SIZES, **fields}
        shape = decoder_config(config)
        torch.manual_seed(7)
        source = _Invented()
        for layer in range(shape.layers):
            block_of(source, shape, f"model.layers.{layer}")
        source.norm("model.norm.weight", shape.width)
        size = 0.1 if shape.tied else 0.5  # a tied head would only say again what it was told
        source._add("model.embed_tokens.weight", torch.randn(shape.vocab_size, shape.width) * size)
        if not shape.tied:
            source._add("lm_head.weight", torch.randn(shape.vocab_size, shape.width) * shape.width**-0.5)
        folder = tmp_path_factory.mktemp(kind)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(source.tensors, folder / "model.safetensors")
        return folder

    return make


@pytest.fixture(scope="session")
def qwen(make_model: MakeModel) -> Path:
    """With biases and grouped queries."""
    return make_model("qwen2", tie_word_embeddings=False)


@pytest.fixture(scope="session")
def quantized(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    """`quantized({name: settings})`: that model by each of them, in a folder of its own."""

    def run(methods: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
        folder = tmp_path_factory.mktemp("made")
        for name, asked in methods.items():
            order = Order(
                source=qwen, out=folder / name, settings=settings(**asked),
                calibrate=lambda: torch.randint(0, 199, (8, 32), generator=torch.Generator().manual_seed(1)),
                calibration="ours", device=CPU,
            )  # fmt: skip
            quantize(order, lambda total, done: None, lambda: None)
        return {name: folder / name for name in methods}

    return run


@pytest.fixture(scope="session")
def logits() -> Logits:
    """Log-probabilities [tokens, vocabulary] of the model in a folder, quantised or not."""

    def run(folder: Path, ids: Sequence[int]) -> torch.Tensor:
        checkpoint = open_checkpoint(folder)
        config = decoder_config(checkpoint.config)
        model = load_decoder(checkpoint, config, torch.float32, CPU)
        blocks = -(-len(ids) // 16)
        cache = KVCache(config.layers, blocks, 16, config.kv_heads, config.head_dim, dtype=torch.float32)
        kernels = kernels_of(config, cache, len(ids), Kernels)
        layout = Layout([Span(0, len(ids), range(blocks))], cache)
        with torch.inference_mode():
            found = model.forward(torch.tensor(ids), layout, torch.arange(len(ids)), kernels)
        return found.log_softmax(-1)

    return run

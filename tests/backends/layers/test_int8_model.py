"""A whole model in int8: as good as its weights, and the same answer alone and among others."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch

from backends.engine.batch import Batch, Row
from backends.engine.runner import ModelRunner, load_runner
from backends.kernels.layout import KVCache, Layout, Span
from backends.layers.linear import Format
from backends.models.checkpoint import open_checkpoint
from backends.models.decoder import kernels_of
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config
from backends.wire import EngineConfig, Sampling

TEXT = Path(__file__).parents[3] / "benchmarks/formats.txt"
GREEDY = Sampling(max_tokens=1, temperature=0.0)


def perplexity(folder: Path, ids: list[int], dtype: torch.dtype, format: Format) -> float:
    checkpoint = open_checkpoint(folder)
    config = decoder_config(checkpoint.config)
    model = load_decoder(checkpoint, config, dtype, torch.device("cpu"), format=format)
    blocks = -(-len(ids) // 16)
    cache = KVCache(
        config.layers, blocks, 16, config.kv_heads, config.head_dim, dtype=dtype, device=torch.device("cpu")
    )
    layout = Layout([Span(0, len(ids), list(range(blocks)), 0)], cache)
    with torch.inference_mode():
        kernels = kernels_of(config, cache, blocks * 16)
        logits = model.forward(torch.tensor(ids), layout, torch.arange(len(ids)), kernels).float()
    return math.exp(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])))


@pytest.mark.models
def test_perplexity_is_within_a_hundredth_of_the_whole_weights(smollm2_folder: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    ids = tokenizer.encode(TEXT.read_text()).ids
    exact = perplexity(smollm2_folder, ids, torch.float32, "none")
    ours = perplexity(smollm2_folder, ids, torch.bfloat16, "int8")
    print(f"perplexity of {len(ids)} tokens: {exact:.3f} in float32, {ours:.3f} in int8")
    assert abs(ours / exact - 1) < 0.01


@pytest.fixture
def tiny(tmp_path: Path, write_gguf: Callable[..., Path]) -> EngineConfig:
    path = write_gguf(tmp_path / "tiny.gguf")
    return EngineConfig(
        name="e/0", model=str(path), address="", events="", vocabulary="", quantization="int8", kv_blocks=64
    )


def answer(runner: ModelRunner, prompts: list[list[int]], steps: int) -> list[list[int]]:
    """Greedy answers of all prompts, decoded side by side, in blocks of their own."""
    tables = [list(range(8 * index, 8 * index + 8)) for index in range(len(prompts))]
    rows = [Row(prompt, 0, table, GREEDY) for prompt, table in zip(prompts, tables, strict=True)]
    answers: list[list[int]] = [[] for _ in prompts]
    for step in range(steps):
        for index, tokens in enumerate(runner.collect(runner.launch(Batch(rows)))):
            answers[index] += tokens
        rows = [
            Row([own[-1]], len(prompt) + step, table, GREEDY)
            for own, prompt, table in zip(answers, prompts, tables, strict=True)
        ]
    return answers


def test_the_answer_is_the_same_alone_and_among_others(tiny: EngineConfig) -> None:
    """Prompts of 3 to 66 tokens: alone a few rows, together more than the kernel for few rows takes."""
    runner = load_runner(tiny)[0]
    prompts = [[(7 * n + k) % 250 for k in range(length)] for n, length in enumerate((3, 17, 40, 66))]
    together = answer(runner, prompts, 8)
    assert [answer(runner, [prompt], 8)[0] for prompt in prompts] == together


def test_int8_on_a_gpu_is_refused(tiny: EngineConfig) -> None:
    config = EngineConfig(
        name="e/0", model=tiny.model, address="", events="", vocabulary="", quantization="int8", device="cuda"
    )
    with pytest.raises(ValueError, match="quantization: int8 is for CPUs, not for cuda"):
        load_runner(config)

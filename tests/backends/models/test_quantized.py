"""A whole model in small integers: as good as its weights, and the same answer alone and among others."""

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import tokenizers
import torch

from backends.engine.batch import Batch, Row
from backends.engine.runner import ModelRunner, load_runner
from backends.instructions import cpu_has_avx2
from backends.kernels.layout import KVCache, Layout, Span
from backends.models.checkpoint import open_checkpoint
from backends.models.decoder import kernels_of
from backends.models.loader import load_decoder
from backends.models.registry import decoder_config
from backends.wire import EngineConfig, Quantization, Sampling

TEXT = Path(__file__).parents[3] / "benchmarks/formats.txt"
DTYPE = torch.float32
GREEDY = Sampling(max_tokens=1, temperature=0.0)


def perplexity(folder: Path, ids: list[int], quantization: Quantization) -> float:
    checkpoint = open_checkpoint(folder)
    config = decoder_config(checkpoint.config)
    model = load_decoder(checkpoint, config, DTYPE, torch.device("cpu"), quantization=quantization)
    blocks = -(-len(ids) // 16)
    cache = KVCache(
        config.layers, blocks, 16, config.kv_heads, config.head_dim, dtype=DTYPE, device=torch.device("cpu")
    )
    layout = Layout([Span(0, len(ids), list(range(blocks)), 0)], cache)
    with torch.inference_mode():
        kernels = kernels_of(config, cache, blocks * 16)
        logits = model.forward(torch.tensor(ids), layout, torch.arange(len(ids)), kernels).float()
    return math.exp(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])))


@pytest.fixture(scope="module")
def text(smollm2_folder: Path) -> list[int]:
    tokenizer = tokenizers.Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(TEXT.read_text()).ids
    return ids


@pytest.fixture(scope="module")
def exact(smollm2_folder: Path, text: list[int]) -> float:
    return perplexity(smollm2_folder, text, "none")


@pytest.mark.models
@pytest.mark.parametrize(("quantization", "bound"), [("int8", 0.01), ("int4", 0.03), ("auto", 0.03)])
def test_perplexity_is_close_to_that_of_the_whole_weights(
    quantization: Quantization, bound: float, smollm2_folder: Path, text: list[int], exact: float
) -> None:
    possible_here(quantization)
    ours = perplexity(smollm2_folder, text, quantization)
    print(f"perplexity of {len(text)} tokens: {exact:.3f} in float32, {ours:.3f} in {quantization}")
    assert abs(ours / exact - 1) < bound


def possible_here(quantization: Quantization) -> None:
    if quantization != "int8" and not cpu_has_avx2():
        pytest.skip(f"{quantization} needs a CPU with AVX2")


@pytest.fixture
def tiny(tmp_path: Path, write_gguf: Callable[..., Path]) -> EngineConfig:
    """A model of four bits."""
    path = write_gguf(tmp_path / "tiny.gguf", format="Q4_1")
    return EngineConfig(name="e/0", model=str(path), socket="", vocabulary="", kv_blocks=64)


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


@pytest.mark.parametrize("quantization", ["int8", "int4", "auto"])
def test_the_answer_is_the_same_alone_and_among_others(
    quantization: Quantization, tiny: EngineConfig
) -> None:
    """Prompts of 3 to 66 tokens: alone a few rows, together more than the kernel for few rows takes."""
    possible_here(quantization)
    runner = load_runner(msgspec.structs.replace(tiny, quantization=quantization))[0]
    prompts = [[(7 * n + k) % 250 for k in range(length)] for n, length in enumerate((3, 17, 40, 66))]
    together = answer(runner, prompts, 8)
    assert [answer(runner, [prompt], 8)[0] for prompt in prompts] == together

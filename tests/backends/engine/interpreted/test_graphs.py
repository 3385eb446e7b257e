"""Decode steps replayed from a recording give what plain torch gives, whatever has changed since."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from backends.engine.batch import Batch, Row
from backends.engine.runner import ModelRunner
from backends.kernels import triton_attention
from backends.kernels.cuda import Cuda
from backends.kernels.reference import Kernels
from backends.layers.embedding import Embedding
from backends.layers.rotation import Rope
from backends.models.config import DecoderConfig
from backends.models.decoder import Block, Decoder
from backends.wire import EngineConfig, Sampling

CONFIG = DecoderConfig(
    layers=2, width=32, mlp_width=48, heads=2, kv_heads=1, head_dim=16, vocab_size=50, max_positions=128,
    norm_eps=1e-5, rope=Rope(10000.0), tied=False, window=20, window_layers=frozenset({1}), head_norms=True,
)  # fmt: skip
GREEDY = Sampling(max_tokens=1, temperature=0.0)
DRAWN = Sampling(max_tokens=1, temperature=0.7, top_p=0.9, seed=5)


def model() -> Decoder:
    noise = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=noise) * 0.4

    def linear(rows: int, columns: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return partial(torch.nn.functional.linear, weight=random(rows, columns))

    blocks = [
        Block(
            attention_norm=torch.ones(32),
            qkv=linear(64, 32),
            output=linear(32, 32),
            mlp_norm=torch.ones(32),
            gate_up=linear(96, 32),
            down=linear(32, 48),
            head_norms=(1 + random(16), 1 + random(16)),
            post_norms=None,
        )
        for _ in range(CONFIG.layers)
    ]
    return Decoder(CONFIG, Embedding.of(random(50, 32)), blocks, torch.ones(32), linear(50, 32), 50)


def runner(make: Callable[..., Kernels], capture: Any = None) -> ModelRunner:
    config = EngineConfig(name="e", model="", socket="", vocabulary="", kv_blocks=8, max_sequences=3)
    made = ModelRunner(model(), config, make, capture)
    made.warm_up()
    return made


def run(runner: ModelRunner, *rows: Row) -> list[list[int]]:
    return runner.collect(runner.launch(Batch(list(rows))))


@pytest.fixture(scope="module")
def ours(recorded: Any) -> Iterator[tuple[ModelRunner, list[Any]]]:
    """With the kernels for GPUs, and its graphs: for 4 rows, for 2 and for 1."""
    graphs: list[Any] = []

    def capture(work: Callable[[], torch.Tensor]) -> Any:
        graphs.append(recorded(work))
        return graphs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_attention, "PIECES", 2)  # a program takes milliseconds here
        yield runner(Cuda, capture), graphs


@pytest.mark.slow
def test_decode_steps_from_a_recording(ours: tuple[ModelRunner, list[Any]], no_waiting: Any) -> None:
    """Two rows, then more, then others in other order; longer than any was when it was recorded."""
    gpu, graphs = ours
    plain = runner(Kernels)
    before = [graph.replays for graph in graphs]
    prompts = [[3, 1, 4, 1, 5], list(range(30)), [9] * 17]
    blocks = [[6, 2], [0, 5, 7], [1, 3]]
    step = [Row(ids, 0, own, DRAWN) for ids, own in zip(prompts, blocks, strict=True)]
    rows = [0, 1, 2]
    for following in ([0, 1], [0, 1, 2], [2], []):
        expected = run(plain, *step)
        with no_waiting():
            pending = gpu.launch(Batch(step))
        assert gpu.collect(pending) == expected
        for row, [token] in zip(rows, expected, strict=True):
            prompts[row].append(token)
        rows = following
        step = [
            Row(
                prompts[row][-1:],
                len(prompts[row]) - 1,
                blocks[row],
                DRAWN if row else GREEDY,
                watched=row == 2,
            )
            for row in rows
        ]
    assert [graph.replays - then for graph, then in zip(graphs, before, strict=True)] == [1, 1, 1]


def test_steps_that_follow_one_whose_tokens_nobody_knows_yet(
    ours: tuple[ModelRunner, list[Any]], no_waiting: Any
) -> None:
    """A prompt's last row among two, then a step of both, then one of the second alone: all launched at once."""
    gpu, plain = ours[0], runner(Kernels)
    prompts, blocks = [[3, 1, 4], [9] * 15], [[6], [1, 3]]
    first = [Row(ids, 0, own, DRAWN) for ids, own in zip(prompts, blocks, strict=True)]
    second = [Row([0], len(ids), own, DRAWN) for ids, own in zip(prompts, blocks, strict=True)]
    third = [Row([0], 16, blocks[1], DRAWN)]
    with no_waiting():
        one = gpu.launch(Batch(first))
        two = gpu.follow(Batch(second), [0, 1], one)
        three = gpu.follow(Batch(third), [1], two)
    ours_said = [gpu.collect(pending) for pending in (one, two, three)]
    said = [run(plain, *first)]
    said.append(run(plain, *(replace(row, tokens=own) for row, own in zip(second, said[0], strict=True))))
    said.append(run(plain, replace(third[0], tokens=said[1][1])))
    assert ours_said == said


@pytest.mark.slow
def test_what_no_graph_is_for_runs_without(ours: tuple[ModelRunner, list[Any]]) -> None:
    """More rows than any has, and a chunk."""
    gpu, graphs = ours
    before = sum(graph.replays for graph in graphs)
    run(gpu, *(Row([1], 0, [block], GREEDY) for block in range(5)))
    run(gpu, Row([1, 2, 3], 0, [0], None), Row([1], 0, [1], GREEDY))
    assert sum(graph.replays for graph in graphs) == before


def test_rows_that_pad_write_nothing(ours: tuple[ModelRunner, list[Any]]) -> None:
    """Three rows in a graph of four: all blocks but theirs stay as they were."""
    cache = ours[0]._cache
    for side in (cache.keys, cache.values):
        side.fill_(torch.nan)
    run(ours[0], *(Row([block], 0, [block], GREEDY) for block in (2, 4, 6)))
    for side in (cache.keys, cache.values):
        written = side.isfinite().all(-1).nonzero().tolist()
        assert written == [[layer, block, 0, 0] for layer in range(2) for block in (2, 4, 6)]

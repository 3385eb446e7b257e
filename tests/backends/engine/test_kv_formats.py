"""Engines that keep keys and values in another type than they compute in: what they say, however they come to say it.

The reference for a token is the engine itself, which reads prompt and answer at once and tells how likely each was. A
number may be rounded to the next code where a sum was rounded otherwise, so that a token counts as right when the
likeliest one is hardly likelier.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from backends.engine.engine import Engine
from backends.engine.runner import ModelRunner, load_runner
from backends.engine.speculation.drafter import Drafter
from backends.engine.speculation.model_drafter import ModelDrafter
from backends.engine.speculation.ngram import NgramDrafter
from backends.kernels.kv_formats import cache_dtype
from backends.wire import EngineConfig, KVFormat, Sampling, Score, Speculation, Submit

SIZE, CONTEXT, ANSWER = 288, 128, 30
COMMON = [(5 * at * at + at) % 250 for at in range(40)]  # longer than two blocks
PROMPTS = [COMMON + [(number * 31 + 7 * at) % 250 for at in range(3 + 6 * number)] for number in range(6)]
NEAR_TIE = 0.02  # of log-probabilities

MakeRunner = Callable[..., ModelRunner]
Answers = list[list[int]]


@pytest.fixture(scope="module")
def make_runner(
    write_gguf: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeRunner]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", "llama", "F32")

    def make(kv_cache: KVFormat, dtype: str = "float32", blocks: int = 64) -> ModelRunner:
        config = EngineConfig(
            name="e", model=str(path), socket="", vocabulary="",
            dtype=dtype, kv_cache=kv_cache, kv_blocks=blocks,  # type: ignore[arg-type]
        )  # fmt: skip
        return load_runner(config, SIZE)[0]

    yield make
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["int8", "int4"])
def runner(make_runner: MakeRunner, request: pytest.FixtureRequest) -> ModelRunner:
    return make_runner(request.param)


def engine_of(runner: ModelRunner, *drafters: Drafter, blocks: int = 64, budget: int = 512) -> Engine:
    config = EngineConfig(
        name="e", model="", socket="", vocabulary="", kv_blocks=blocks, token_budget=budget,
        speculation=Speculation(gated=False, max_tokens=4),
    )  # fmt: skip
    return Engine(config, runner, [b"x"] * SIZE, frozenset(), SIZE, CONTEXT, drafters=drafters)


def run(engine: Engine, prompts: Answers) -> tuple[Answers, int]:
    """Answers, and how many of the prompts' tokens were cached."""
    sampling = Sampling(max_tokens=ANSWER, temperature=0.0, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        assert engine.submit(b"", Submit(id=str(number), prompt=prompt, sampling=sampling)) is None
    answers: Answers = [[] for _ in prompts]
    cached = [0] * len(prompts)
    while engine.has_work:
        for _, output in engine.step():
            answers[int(output.id)] += output.ids
            cached[int(output.id)] = output.cached
        engine.check()
    return answers, sum(cached)


def short(runner: ModelRunner, prompt: list[int], answer: list[int]) -> float:
    """By how much the log-probability of a token of the answer falls short of the likeliest one's, at most."""
    engine = engine_of(runner)
    sampling = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True, prompt_logprobs=True, logprobs=1)
    assert engine.submit(b"", Submit(id="0", prompt=prompt + answer, sampling=sampling)) is None
    told: list[Score] = []
    while engine.has_work:
        for _, output in engine.step():
            told += output.prompt
    return max(score.top[0][1] - score.logprob for score in told[-len(answer) :])


def assert_right(runner: ModelRunner, answers: Answers) -> None:
    assert [len(answer) for answer in answers] == [ANSWER] * len(PROMPTS)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert short(runner, prompt, answer) < NEAR_TIE


def test_whole_in_chunks_and_among_others(runner: ModelRunner) -> None:
    assert_right(runner, run(engine_of(runner), PROMPTS)[0])
    assert_right(runner, run(engine_of(runner, budget=13), PROMPTS)[0])
    assert_right(runner, [run(engine_of(runner), [prompt])[0][0] for prompt in PROMPTS])


def test_a_cached_prefix_is_read_with_its_scales(runner: ModelRunner) -> None:
    engine = engine_of(runner)
    run(engine, PROMPTS[:1])
    answers, cached = run(engine, PROMPTS)
    assert cached >= 32 * len(PROMPTS)
    assert_right(runner, answers)


def test_preempted_sequences_go_on(runner: ModelRunner) -> None:
    engine = engine_of(runner, blocks=12)
    answers, _ = run(engine, PROMPTS)
    assert engine.load().preemptions > 0
    assert_right(runner, answers)


def test_drafts_are_verified(
    runner: ModelRunner, make_runner: MakeRunner, request: pytest.FixtureRequest
) -> None:
    draft = make_runner(request.node.callspec.params["runner"])
    engine = engine_of(runner, NgramDrafter(), ModelDrafter(draft, 64, CONTEXT))
    answers, _ = run(engine, PROMPTS)
    load = engine.load()
    assert load.drafted_tokens > 100 and load.accepted_tokens > 0.9 * load.drafted_tokens
    assert_right(runner, answers)


@pytest.mark.parametrize(("kv_cache", "share"), [("bf16", 1 / 2), ("int8", 20 / 64), ("int4", 12 / 64)])
def test_memory(
    kv_cache: KVFormat, share: float, make_runner: MakeRunner, caplog: pytest.LogCaptureFixture
) -> None:
    """Heads of 16, instead of four bytes each: in eight bits one byte each and a scale of four; in four bits half a
    byte each, and a scale and a least number of two."""
    with caplog.at_level("INFO", logger="backends.engine.runner"):
        sizes = [make_runner(each)._cache.bytes for each in ("fp32", kv_cache)]
    assert sizes[1] / sizes[0] == share
    kept = {"bf16": "bfloat16"}.get(kv_cache, kv_cache)
    assert f"e keeps keys and values in {kept}: {sizes[1] / 1e6:.1f} MB" in caplog.messages


def test_types() -> None:
    for computed in (torch.float32, torch.bfloat16):
        assert cache_dtype("auto", computed, "cpu") == computed
        assert cache_dtype("int8", computed, "cpu") == torch.int8
        assert cache_dtype("int4", computed, "cpu") == torch.uint8
        assert cache_dtype("fp32", computed, "cpu") == torch.float32
        assert cache_dtype("bf16", computed, "cpu") == torch.bfloat16
    assert cache_dtype("fp8", torch.bfloat16, "cuda") == torch.float8_e4m3fn
    with pytest.raises(ValueError, match="kv_cache: fp8 needs a GPU"):
        cache_dtype("fp8", torch.float32, "cpu")
    with pytest.raises(
        ValueError, match="kv_cache: int4 is for CPUs; the GPU kernels have fp32, bf16, int8 and fp8"
    ):
        cache_dtype("int4", torch.bfloat16, "cuda")

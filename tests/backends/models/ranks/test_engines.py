"""Whole engines over ranks say what engines of one say: in chunks, after cached prefixes, preempted, drafted for, held
to grammars and sampled."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.engine.engine import Engine
from backends.engine.grammar import GrammarCompiler
from backends.engine.parallel.leader import Workers
from backends.engine.runner import ModelRunner, load_model
from backends.engine.speculation.ngram import NgramDrafter
from backends.wire import EngineConfig, Grammar, Output, Sampling, Speculation, Submit, Vocabulary

IDS = 199
VOCABULARY = [bytes([id]) for id in range(IDS)]
COMPILER = GrammarCompiler(Vocabulary(VOCABULARY, {}), frozenset(), IDS)
PROMPT = [(7 * place + 3) % 97 for place in range(70)]


@dataclass
class Said:
    """All that was told of one answer."""

    ids: list[int] = field(default_factory=list)
    scores: list[Any] = field(default_factory=list)
    signals: list[Any] = field(default_factory=list)
    cached: int = 0

    def hear(self, output: Output) -> None:
        self.ids += output.ids
        self.scores += output.scores
        self.signals += output.signals
        self.cached = output.cached


@pytest.fixture(scope="module", params=["none", "int8"])
def config(request: pytest.FixtureRequest, save_model: Callable[..., tuple[Path, Any]]) -> EngineConfig:
    """Room for fewer tokens than the prompts and answers have, and steps that cut the prompts."""
    folder, _ = save_model(
        "qwen2",
        num_attention_heads=12,
        num_key_value_heads=6,
        head_dim=16,
        hidden_size=192,
        num_hidden_layers=2,
    )
    return EngineConfig(
        name="e", model=str(folder), socket="", vocabulary="", dtype="float32",
        quantization=request.param, kv_blocks=20, token_budget=24, speculation=Speculation(method="ngram", gated=False),
    )  # fmt: skip


def engine(config: EngineConfig, runner: ModelRunner) -> Engine:
    """One for which no time passes, so that the steps do not depend on the machine."""
    return Engine(
        config,
        runner,
        VOCABULARY,
        frozenset(),
        IDS,
        256,
        timer=lambda: 0.0,
        compile=COMPILER.compile,
        drafters=[NgramDrafter()],
    )


def work() -> list[Submit]:
    """Answers of 40 tokens, each asked for in another way."""
    ways: list[dict[str, Any]] = [
        {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": True},
        {"seed": 5, "top_p": 0.9, "signals": True},
        {"seed": 6, "logit_bias": {40: 30.0}},
        {"seed": 7, "grammar": Grammar("regex", "[a-z]{3}( [a-z]{3}){12}"), "signals": True},
        {"seed": 8, "temperature": 1.5, "frequency_penalty": 1.5, "n": 2},
    ]
    prompts = [PROMPT, PROMPT[:50], PROMPT[:50] + PROMPT[:30], PROMPT[20:], [1, 2, 3] * 10]
    return [
        Submit(id=str(number), prompt=prompt, sampling=Sampling(max_tokens=40, ignore_eos=True, **way))
        for number, (prompt, way) in enumerate(zip(prompts, ways, strict=True))
    ]


def run(engine: Engine, submits: list[Submit]) -> dict[str, Said]:
    said: dict[str, Said] = {}
    for submit in submits:
        assert engine.submit(b"", submit) is None
    while engine.has_work:
        for _, output in engine.step():
            said.setdefault(f"{output.id}#{output.index}", Said()).hear(output)
            assert output.error is None and output.fault is None
        engine.check()
    assert not engine.refusals()
    return said


def test_engines_say_the_same(config: EngineConfig, workers: Workers) -> None:
    """The engine of one comes first: what it compiles, the ranks find done."""
    one = engine(config, ModelRunner(load_model(config).model, config))
    rounds = [run(one, work()) for _ in range(2)]
    ours, _ = workers.load(msgspec.structs.replace(config, tensor_parallel=workers.ranks))
    several = engine(config, ours)
    for again, expected in enumerate(rounds):
        answers = run(several, work())
        assert answers.keys() == expected.keys() and len(answers) == 6
        for name, said in answers.items():
            right = expected[name]
            assert (said.ids, said.cached) == (right.ids, right.cached), name
            assert_close(said, right)
        assert any(said.cached for said in answers.values()) or not again
    load = several.load()
    assert load.preemptions and load.accepted_tokens and load.step_tokens > load.steps
    assert len(answers["3#0"].ids) == 40 and bytes(answers["3#0"].ids).islower()
    told = ours.told / load.step_rows
    print(f"{told:.0f} bytes a row to each rank")
    assert told < 100


def assert_close(said: Said, right: Said) -> None:
    for ours, theirs in zip(said.scores, right.scores, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [id for id, _ in ours.top] == [id for id, _ in theirs.top]
    for ours, theirs in zip(said.signals, right.signals, strict=True):
        assert (ours.logprob, ours.margin) == pytest.approx((theirs.logprob, theirs.margin), abs=1e-3)
        assert ours.entropy == pytest.approx(theirs.entropy, abs=1e-3)
        assert ours.forced == theirs.forced

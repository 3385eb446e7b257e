"""Grammars through a real runner and sampler: a small model of random weights, which would say anything."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from backends.engine.engine import Engine
from backends.engine.grammar import GrammarCompiler
from backends.engine.runner import ModelRunner, load_runner
from backends.wire import EngineConfig, Grammar, Output, Sampling, Score, Submit, Vocabulary

# As many as in the file of weights.
DATA = [bytes([byte]) for byte in range(256)] + [b"he", b"  ", b"", b"", b""]
EOS, SIZE, CONTEXT = 260, 288, 128
PROMPT = [(7 * at * at + 3 * at) % 250 for at in range(20)]
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 2.0, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.1, "min_p": 0.05},
    {
        "temperature": 1.0,
        "frequency_penalty": 2.0,
        "repetition_penalty": 1.8,
        "logit_bias": {ord("}"): -100.0},
    },
    {"temperature": 1.0, "logit_bias": {ord("a"): 100.0, EOS: 100.0}},
    {"temperature": 1.0, "min_tokens": 30},
    {"temperature": 1.0, "ignore_eos": True},
]
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}, "b": {"type": "boolean"}},
     "required": ["a", "b"], "additionalProperties": False},
    {"type": "array", "items": {"enum": ["x", 1, None]}, "minItems": 2, "maxItems": 5},
    {"type": "integer", "minimum": -99, "maximum": 99},
]  # fmt: skip


@pytest.fixture(scope="module")
def runner(
    write_gguf: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModelRunner]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", "llama", "F32")
    config = EngineConfig(name="e", model=str(path), socket="", vocabulary="", dtype="float32", kv_blocks=64)
    made, *_ = load_runner(config, SIZE)
    yield made
    torch.set_num_threads(before)


@pytest.fixture
def engine(runner: ModelRunner) -> Callable[..., Engine]:
    vocabulary, eos = Vocabulary(DATA, {EOS: "<end>"}), frozenset({EOS})
    compiler = GrammarCompiler(vocabulary, eos, SIZE)

    def make(**fields: Any) -> Engine:
        config = EngineConfig(name="e", model="", socket="", vocabulary="", **{"kv_blocks": 64, **fields})
        return Engine(config, runner, DATA, eos, SIZE, CONTEXT, compile=compiler.compile)

    return make


def submit(engine: Engine, id: str, grammar: Grammar | None, **sampling: Any) -> None:
    asked = Sampling(max_tokens=80, grammar=grammar, **sampling)
    assert engine.submit(b"gw", Submit(id=id, prompt=PROMPT, sampling=asked)) is None


def run(engine: Engine) -> dict[str, list[Output]]:
    told: dict[str, list[Output]] = {}
    while engine.has_work:
        for _, output in engine.step():
            told.setdefault(f"{output.id}.{output.index}", []).append(output)
        engine.check()
    assert engine.refusals() == []
    return told


def text(outputs: list[Output]) -> str:
    return b"".join(DATA[id] for output in outputs for id in output.ids).decode()


def of(schema: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(schema))


@pytest.mark.parametrize("options", OPTIONS, ids=json.dumps)
def test_every_answer_satisfies_its_schema_whatever_else_is_asked(
    engine: Callable[..., Engine], options: dict[str, Any]
) -> None:
    busy = engine(kv_blocks=20)
    for number, schema in enumerate(SCHEMAS):
        submit(busy, str(number), of(schema), seed=number, n=2, **options)
    submit(busy, "free", None, seed=9, ignore_eos=True)
    told = run(busy)
    for number, schema in enumerate(SCHEMAS):
        for index in range(2):
            outputs = told[f"{number}.{index}"]
            assert outputs[-1].finish == "stop"
            jsonschema.validate(json.loads(text(outputs)), schema)
    alone = engine()
    submit(alone, "free", None, seed=9, ignore_eos=True)
    assert [output.ids for output in run(alone)["free.0"]] == [output.ids for output in told["free.0"]]


def test_scores_are_of_the_model_and_the_greedy_choice_is_its_likeliest_allowed_token(
    engine: Callable[..., Engine],
) -> None:
    free, held = engine(), engine()
    submit(free, "g", None, temperature=0.0, logprobs=20, ignore_eos=True)
    submit(held, "g", Grammar("regex", "[a-f]{6}"), temperature=0.0, logprobs=20)
    first, constrained = run(free)["g.0"][0].scores[0], run(held)["g.0"]
    scores: list[Score] = [score for output in constrained for score in output.scores]
    ids = [id for output in constrained for id in output.ids]
    assert len(ids) == 6 and set(bytes(ids)) <= set(b"abcdef")
    assert scores[0].top == first.top, "what came before is the same, so what the model holds likely is too"
    for id, score in zip(ids, scores, strict=True):
        allowed = {other: logprob for other, logprob in score.top if other in range(ord("a"), ord("g"))}
        assert all(score.logprob >= logprob for logprob in allowed.values())
        assert np.isfinite(score.logprob) and (
            id not in dict(score.top) or dict(score.top)[id] == score.logprob
        )


def test_a_seed_gives_the_same_answer_in_any_company(engine: Callable[..., Engine]) -> None:
    grammar = Grammar("regex", "[a-z]{40}")
    quiet, busy = engine(), engine(kv_blocks=18, token_budget=16)
    submit(quiet, "g", grammar, seed=3)
    for number in range(4):
        submit(busy, str(number), grammar, seed=3)
        submit(busy, f"other {number}", None, seed=number, ignore_eos=True)
    right = text(run(quiet)["g.0"])
    told = run(busy)
    assert busy.load().preemptions > 0
    assert [text(told[f"{number}.0"]) for number in range(4)] == [right] * 4

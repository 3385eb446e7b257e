"""Whole engines over random models: answers are those of `transformers`, whatever the rope or the windows ask for."""

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.engine.engine import Engine
from backends.engine.runner import ModelRunner, load_runner
from backends.wire import EngineConfig, Sampling, Submit

NEAR_TIE = 1e-3  # of logits
BORDER = 64
ANSWER = 30


def longrope() -> dict[str, Any]:
    draw = random.Random(5)
    short, long = ([draw.uniform(low, 3 * low) for _ in range(16)] for low in (1.0, 2.0))
    return {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": short, "long_factor": long}


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "longrope": (
        "phi3",
        {
            "original_max_position_embeddings": BORDER,
            "rope_parameters": longrope(),
            "pad_token_id": 0,
        },
    ),
    "windows": ("gemma3_text", {"sliding_window": 10, "num_hidden_layers": 7}),
    "no positions": ("smollm3", {"num_hidden_layers": 4, "pad_token_id": 0}),
}


class Case:
    """A model in both; `start` makes an engine of few blocks and small steps."""

    def __init__(self, folder: Path, oracle: Any) -> None:
        self.config = EngineConfig(
            name="e",
            model=str(folder),
            socket="",
            vocabulary="",
            dtype="float32",
            kv_blocks=24,
            token_budget=24,
        )
        self.oracle = oracle
        loaded = load_runner(self.config)
        self.runner: ModelRunner = loaded[0]
        self.vocab_size, self.length = loaded[2:]
        torch.set_num_threads(1)

    def start(self) -> Engine:
        return Engine(
            self.config,
            self.runner,
            [b"x"] * self.vocab_size,
            frozenset(),
            self.vocab_size,
            self.length,
            border=self.runner.border,
        )

    def assert_greedy(self, prompt: list[int], answer: list[int]) -> None:
        """Each token is what the model says to the whole text before it."""
        assert len(answer) == ANSWER
        for length in range(len(prompt), len(prompt) + ANSWER):
            text = prompt + answer[: length - len(prompt)]
            with torch.inference_mode():
                logits = self.oracle(torch.tensor([text]), logits_to_keep=1).logits[0, -1]
            assert logits.max() - logits[answer[length - len(prompt)]] < NEAR_TIE, f"after {length} tokens"


@pytest.fixture(scope="module", params=MODELS.values(), ids=list(MODELS))
def case(request: pytest.FixtureRequest, save_model: Callable[..., tuple[Path, Any]]) -> Case:
    kind, fields = request.param
    return Case(*save_model(kind, **fields))


@pytest.fixture(scope="module")
def phi(save_model: Callable[..., tuple[Path, Any]]) -> Case:
    kind, fields = MODELS["longrope"]
    return Case(*save_model(kind, **fields))


def run(engine: Engine, *prompts: list[int]) -> tuple[list[list[int]], list[int]]:
    """All at once. The answers, and how many tokens of each prompt were cached."""
    sampling = Sampling(max_tokens=ANSWER, temperature=0.0, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        assert engine.submit(b"", Submit(id=str(number), prompt=prompt, sampling=sampling)) is None
    answers, cached = defaultdict[str, list[int]](list), {}
    while engine.has_work:
        for _, output in engine.step():
            answers[output.id] += output.ids
            cached[output.id] = output.cached
        engine.check()
    names = [str(number) for number in range(len(prompts))]
    return [answers[name] for name in names], [cached[name] for name in names]


def prompt(length: int) -> list[int]:
    return random.Random(3).choices(range(199), k=length)


def test_answers_are_greedy(case: Case) -> None:
    """On both sides of the border and over it; in chunks; beside one another; more than there are blocks for."""
    prompts = [prompt(length) for length in (50, 20, BORDER, BORDER + 1, 100)]
    answers, _ = run(case.start(), *prompts)
    for each, answer in zip(prompts, answers, strict=True):
        case.assert_greedy(each, answer)


def test_sequences_on_different_sides_of_the_border_share_no_blocks(phi: Case) -> None:
    """Though their tokens are equal, their keys are not."""
    engine = phi.start()
    assert phi.runner.border == BORDER
    [short], [cached] = run(engine, prompt(BORDER - ANSWER))
    assert not cached
    [long], [cached] = run(engine, prompt(100))
    assert not cached
    phi.assert_greedy(prompt(100), long)
    [again], [cached] = run(engine, prompt(BORDER - ANSWER))
    assert (again, cached) == (short, (BORDER - ANSWER) // 16 * 16)
    [again], [cached] = run(engine, prompt(100))
    assert (again, cached) == (long, 96)


def test_an_answer_that_outgrows_the_border_leaves_both_halves_in_the_cache(phi: Case) -> None:
    engine, ids = phi.start(), prompt(BORDER - 10)
    [answer], _ = run(engine, ids)
    _, [cached] = run(engine, ids)
    assert cached == (BORDER - 10) // 16 * 16
    _, [cached] = run(engine, ids + answer[:-1])
    assert cached == 80  # of 83


YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}


@pytest.mark.parametrize(
    "length",
    [20_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])],
)
def test_a_long_document_in_chunks(save_model: Callable[..., tuple[Path, Any]], length: int) -> None:
    """Beyond the context that the model was made for, which yarn stretches to 131,072 tokens.

    The last token and those of an answer are compared: the document's own keys and values lie behind all of them.
    """
    folder, oracle = save_model(
        "llama",
        num_hidden_layers=2,
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=131072,
        rope_parameters=YARN,
    )
    oracle.set_attn_implementation("sdpa")
    config = EngineConfig(
        name="e",
        model=str(folder),
        socket="",
        vocabulary="",
        dtype="float32",
        kv_blocks=length // 16 + 2,
        token_budget=2048,
    )
    runner, _, vocab_size, context = load_runner(config)
    engine = Engine(config, runner, [b"x"] * vocab_size, frozenset(), vocab_size, context)
    ids = prompt(length)
    sampling = Sampling(max_tokens=4, temperature=0.0, ignore_eos=True, logprobs=20)
    assert engine.submit(b"", Submit(id="document", prompt=ids, sampling=sampling)) is None
    outputs = []
    while engine.has_work:
        outputs += [output for _, output in engine.step()]
    answer = [token for output in outputs for token in output.ids]
    scores = [score for output in outputs for score in output.scores]
    with torch.inference_mode():
        logits = oracle(torch.tensor([ids + answer[:-1]]), logits_to_keep=4).logits[0]
    wanted = logits.log_softmax(-1)
    for score, row in zip(scores, wanted, strict=True):
        for token, logprob in score.top:
            assert abs(logprob - row[token]) < 3e-4
    assert len(answer) == 4

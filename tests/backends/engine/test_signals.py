"""Signals of what an engine says: of the raw logits, for those who ask, and without a word changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.engine.batch import Batch, Choice, Row
from backends.engine.runner import ModelRunner, load_runner
from backends.wire import EngineConfig, Grammar, Sampling

SIZE = 288
PROMPT = [(7 * at * at + 3 * at) % 250 for at in range(20)]


@pytest.fixture(scope="module")
def runner(write_gguf: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", "llama", "F32")
    config = EngineConfig(name="e", model=str(path), socket="", vocabulary="", dtype="float32", kv_blocks=64)
    made, *_ = load_runner(config, SIZE)
    return made


def words(*allowed: int) -> Any:
    bits = np.zeros(SIZE, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def row(block: int, sampling: Sampling | None, **fields: Any) -> Row:
    return Row(PROMPT, 0, [block, block + 1], sampling, **fields)


def test_they_are_of_the_raw_logits_and_change_no_token(runner: ModelRunner) -> None:
    """Neither temperature nor a bias nor a grammar shows in them, and rows that do not ask have none."""
    plain = Sampling(max_tokens=1, temperature=0.7, seed=3)
    biased = Sampling(max_tokens=1, temperature=0.0, logit_bias={5: 100.0})
    rows = [
        row(0, plain, watched=True),
        row(2, None),
        row(4, plain),
        row(6, biased, watched=True),
        row(8, plain, watched=True, choices=[Choice(allowed=words(9))]),
    ]
    pending = runner.launch(Batch(rows))
    tokens = runner.collect(pending)
    told = runner.signals(pending)
    unwatched = [Row(r.tokens, 0, r.blocks, r.sampling, r.choices) for r in rows]
    quiet = runner.launch(Batch(unwatched))
    assert runner.collect(quiet) == tokens and runner.signals(quiet) == [[]] * 5
    assert [len(signals) for signals in told] == [1, 0, 0, 1, 1]
    assert tokens[0] == tokens[2] and tokens[3:] == [[5], [9]]
    [free], _, _, [pushed], [held] = told
    assert (free.margin, free.entropy) == (pushed.margin, pushed.entropy) == (held.margin, held.entropy)
    assert held.forced and not free.forced and not pushed.forced
    assert free.logprob > pushed.logprob  # 5 was unlikely before it was pushed


def test_log_probabilities_are_those_of_scores(runner: ModelRunner) -> None:
    pending = runner.launch(Batch([row(0, Sampling(max_tokens=1, temperature=0.0), watched=True, top=2)]))
    runner.collect(pending)
    [[score]], [[signal]] = runner.scores(pending), runner.signals(pending)
    assert torch.allclose(torch.tensor(signal.logprob), torch.tensor(score.logprob), atol=1e-4)
    (_, best), (_, second) = score.top
    assert signal.margin == pytest.approx(best - second, abs=1e-4)


def test_one_for_each_token_told(rig: Callable[..., Any]) -> None:
    """Also where tokens are held back as the beginning of a stop string; only the first of several answers has them."""
    made = rig()
    answer = made.submit([1, 2, 3], 12, signals=True, stop=("abab",), seed=5)
    silent = made.submit([1, 2, 3], 12, stop=("abab",), seed=5)
    made.run()
    assert answer.ids == silent.ids
    assert [signal.logprob for signal in answer.signals] == [3.0 + n for n in range(len(answer.ids))]
    assert silent.signals == []


def test_a_preempted_sequence_has_each_once(rig: Callable[..., Any]) -> None:
    made = rig(kv_blocks=10, max_sequences=3)
    answers = [made.submit([n, n, n], 14, signals=True, seed=n) for n in range(3)]
    made.run()
    for answer in answers:
        assert [signal.logprob for signal in answer.signals] == [3.0 + n for n in range(14)]


def test_only_the_first_of_several_answers(rig: Callable[..., Any]) -> None:
    made = rig()
    made.submit([1, 2], 4, signals=True, n=2, id="two")
    told = []
    while made.engine.has_work:
        told += [output for _, output in made.engine.step()]
    assert sum(len(output.signals) for output in told if not output.index) == 4
    assert all(not output.signals for output in told if output.index)


def test_forced_tokens_are_marked(rig: Callable[..., Any]) -> None:
    grammar = Grammar("regex", "ab?c")
    answer = rig().ask([1, 2], 8, signals=True, grammar=grammar, ignore_eos=False)
    assert any(signal.forced for signal in answer.signals)
    assert len(answer.signals) == len(answer.ids)

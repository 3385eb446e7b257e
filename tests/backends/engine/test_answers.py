"""What an engine with a small real model says of its tokens: several answers, scores, penalties.

The oracle reads a whole sequence in one pass.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.engine.adjustments import adjust
from backends.engine.batch import Choice, Pick, Seen
from backends.engine.engine import Engine
from backends.engine.grammar import GrammarCompiler
from backends.engine.runner import load_runner
from backends.engine.sampler import sample
from backends.kernels.reference import Kernels
from backends.wire import (
    EngineConfig,
    FinishReason,
    Grammar,
    Output,
    Sampling,
    Score,
    Submit,
    Vocabulary,
)

VOCABULARY, END = 288, 287
SPELLED = [bytes([65 + id % 26]) for id in range(VOCABULARY)]
COMPILER = GrammarCompiler(Vocabulary(SPELLED, {END: "<end>"}), frozenset({END}), VOCABULARY)
CONTEXT = 128
PROMPT = [(7 * at * at + 3 * at) % 280 for at in range(41)]
OTHERS = [[(11 * at + number) % 280 for at in range(23 + number)] for number in range(3)]


@dataclass
class Answer:
    ids: list[int] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    prompt: list[Score] = field(default_factory=list)
    finish: FinishReason | None = None
    trim: int = 0
    cached: int = 0


Answers = dict[int, Answer]


class Model:
    """A small decoder of random weights, the runner that serves it, and `transformers` as the oracle."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        fields = {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        shape = AutoConfig.for_model(
            "llama", vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, initializer_range=0.25, **fields
        )
        torch.manual_seed(1)
        self._oracle = AutoModelForCausalLM.from_config(shape, dtype=torch.float32).eval()
        self._oracle.save_pretrained(folder)
        config = EngineConfig(
            name="e", model=str(folder), socket="", vocabulary="", dtype="float32", kv_blocks=64
        )
        self.runner, *_ = load_runner(config)

    def engine(self, **fields: Any) -> Engine:
        config = EngineConfig(name="e", model="", socket="", vocabulary="", **{"kv_blocks": 64, **fields})
        eos, compile = frozenset({END}), COMPILER.compile
        return Engine(config, self.runner, SPELLED, eos, VOCABULARY, CONTEXT, compile=compile)

    def logits(self, ids: list[int]) -> torch.Tensor:
        """Of every position, [len(ids), vocabulary]."""
        with torch.inference_mode():
            logits: torch.Tensor = self._oracle(torch.tensor([ids])).logits[0]
        return logits


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Model(tmp_path_factory.mktemp("model"))
    torch.set_num_threads(before)


def submit(engine: Engine, id: str, prompt: list[int], **sampling: Any) -> None:
    fields = {"max_tokens": 12, "ignore_eos": True, "seed": 5, **sampling}
    assert engine.submit(b"gw", Submit(id=id, prompt=prompt, sampling=Sampling(**fields))) is None


def run(engine: Engine) -> dict[str, Answers]:
    """Until all is done. Every answer by the id of its generation and its index."""
    answers: dict[str, Answers] = defaultdict(lambda: defaultdict(Answer))
    while engine.has_work:
        for _, output in engine.step():
            take(answers[output.id][output.index], output)
        engine.check()
    load = engine.load()
    assert load.blocks_free + load.blocks_cached == load.blocks_total
    return answers


def take(answer: Answer, output: Output) -> None:
    assert answer.finish is None, "told after its end"
    answer.ids += output.ids
    answer.scores += output.scores
    answer.prompt += output.prompt
    answer.finish, answer.trim, answer.cached = output.finish, output.trim, output.cached


def ask(engine: Engine, prompt: list[int] = PROMPT, **sampling: Any) -> Answers:
    submit(engine, "g", prompt, **sampling)
    return run(engine)["g"]


def amid(engine: Engine, **sampling: Any) -> Answers:
    """Like `ask`, with others that come before and after."""
    for number, prompt in enumerate(OTHERS[:2]):
        submit(engine, f"before {number}", prompt, max_tokens=30, seed=number)
    submit(engine, "g", PROMPT, **sampling)
    submit(engine, "after", OTHERS[2], max_tokens=30, n=2, logprobs=3, prompt_logprobs=True)
    return run(engine)["g"]


def is_right(scores: list[Score], logits: torch.Tensor, tokens: list[int], top: int) -> bool:
    """Whether they are the log-softmax of `logits` [tokens, vocabulary]."""
    expected = logits.log_softmax(-1)
    chosen = [score.logprob for score in scores]
    assert chosen == pytest.approx(expected[range(len(tokens)), tokens].tolist(), abs=1e-4)
    for score, row in zip(scores, expected, strict=True):
        values, _ = row.topk(top)
        assert [value for _, value in score.top] == pytest.approx(values.tolist(), abs=1e-4)
        assert [row[id].item() for id, _ in score.top] == pytest.approx(values.tolist(), abs=1e-4)
    return True


# How to disturb a generation: pools so small that it is preempted, chunks, a warm cache.
DISTURBED: list[dict[str, Any]] = [
    {},
    {"token_budget": 8},
    {"kv_blocks": 9},
    {"kv_blocks": 9, "token_budget": 16},
    {"max_sequences": 2},
]
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.9},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 1.2, "presence_penalty": 1.5, "min_p": 0.02, "logit_bias": {9: 4.0, 10: -100.0}},
    {"temperature": 0.7, "frequency_penalty": -0.5, "top_p": 0.9, "min_tokens": 12, "stop_token_ids": (4, 9)},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_nothing_that_happens_changes_an_answer(model: Model, options: dict[str, Any]) -> None:
    quiet = {
        index: answer.ids for index, answer in ask(model.engine(), n=3, max_tokens=40, **options).items()
    }
    preempted = 0
    for disturbance in DISTURBED:
        engine = model.engine(**disturbance)
        answers = amid(engine, n=3, max_tokens=40, **options)
        again = ask(engine, n=3, max_tokens=40, **options)  # on a warm cache
        assert {index: answer.ids for index, answer in answers.items()} == quiet
        assert {index: answer.ids for index, answer in again.items()} == quiet
        preempted += engine.load().preemptions
    assert preempted > 3


def any_options(draw: random.Random) -> dict[str, Any]:
    """All together, the extreme ones too."""
    most = draw.choice([0, 1, 7, 40])
    logprobs = draw.choice([None, None, 0, 4])
    return {
        "max_tokens": most,
        "min_tokens": draw.choice([0, min(3, most)]),
        "temperature": draw.choice([0.0, 0.7, 1.0, 2.0, 1e-300, 1e30]),
        "top_p": draw.choice([1.0, 0.9, 1e-9]),
        "top_k": draw.choice([0, 1, 5, 10**6]),
        "min_p": draw.choice([0.0, 0.05, 1.0]),
        "seed": draw.choice([0, 2**64 - 1, draw.getrandbits(64)]),
        "presence_penalty": draw.choice([0.0, 2.0, -2.0]),
        "frequency_penalty": draw.choice([0.0, 2.0, -2.0]),
        "repetition_penalty": draw.choice([1.0, 1.3, 0.01, 10.0]),
        "logit_bias": draw.choice([{}, {5: 100.0, 6: -100.0}, dict.fromkeys(range(200), -100.0)]),
        "n": draw.choice([1, 1, 2, 4]),
        "logprobs": logprobs,
        "prompt_logprobs": logprobs is not None and draw.random() < 0.5,
        "stop": draw.choice([(), ("AB", "C"), ("ABZ", "BC")]),
        "stop_token_ids": draw.choice([(), (3, 4), tuple(range(64))]),
        "ignore_eos": draw.random() < 0.5,
        "grammar": draw.choice([None, None, Grammar("regex", "[A-Z]{3,30}"), Grammar("regex", "(AB)+C?")]),
    }


@pytest.mark.parametrize("seed", range(12))
def test_no_combination_of_options_makes_an_answer_depend_on_its_company(model: Model, seed: int) -> None:
    """Each alone, and all at once on too few blocks, in chunks, some of them waiting for others."""
    draw = random.Random(seed)
    lengths = [1, 2, 16, 17, 40, 90, CONTEXT - 1]
    work = [(PROMPT[:8] * 16)[: draw.choice(lengths)] for _ in range(5)]  # they begin alike
    asked = {f"g{number}": (prompt, any_options(draw)) for number, prompt in enumerate(work)}
    alone = {id: ask(model.engine(), prompt, **options) for id, (prompt, options) in asked.items()}
    engine = model.engine(
        kv_blocks=draw.choice([8, 9, 20]),
        token_budget=draw.choice([4, 16, 512]),
        max_sequences=draw.choice([1, 2, 8]),
    )
    for id, (prompt, options) in asked.items():
        submit(engine, id, prompt, **options)
    together = run(engine)
    assert together.keys() == alone.keys()
    for id, answers in alone.items():
        assert together[id].keys() == answers.keys()
        for index, answer in answers.items():
            other = together[id][index]
            assert (other.ids, other.finish, other.trim) == (answer.ids, answer.finish, answer.trim), asked[
                id
            ]
            for ours, theirs in ((other.scores, answer.scores), (other.prompt, answer.prompt)):
                assert [score.logprob for score in ours] == pytest.approx(
                    [score.logprob for score in theirs], abs=1e-3
                )


def test_penalties_count_what_the_oracle_counts(model: Model) -> None:
    """Each token is the one that the oracle's own counts of the answer so far lead to."""
    options: dict[str, Any] = {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.2}
    sampling = Sampling(max_tokens=1, seed=5, logit_bias={17: 1.5}, **options)
    ids = amid(model.engine(kv_blocks=9), logit_bias={17: 1.5}, max_tokens=30, **options)[0].ids
    logits = model.logits(PROMPT + ids)[len(PROMPT) - 1 :]
    for at, token in enumerate(ids):
        pick = Pick(0, 0, sampling, Choice(Seen(frozenset(PROMPT), Counter(ids[:at]))))
        chosen = sample(adjust(logits[at : at + 1], [pick]), [sampling], [len(PROMPT) + at], Plain())
        assert int(chosen) == token


class Plain(Kernels):
    """The draw alone."""

    def __init__(self) -> None:
        pass


def test_the_first_of_several_is_the_only_one_of_one(model: Model) -> None:
    several = ask(model.engine(), n=4, seed=2**64 - 1)
    assert sorted(several) == [0, 1, 2, 3]
    assert several[0] == ask(model.engine(), seed=2**64 - 1)[0]
    assert len({tuple(answer.ids) for answer in several.values()}) == 4  # vllm#11898: n equal texts


def test_several_answers_share_the_blocks_of_their_prompt(model: Model) -> None:
    engine = model.engine()
    answers = ask(engine, n=4)
    assert [answer.cached for answer in answers.values()] == [0, 32, 32, 32]
    load = engine.load()
    assert (load.prompt_tokens, load.cached_tokens) == (len(PROMPT), 0)
    assert load.generation_tokens == 4 * 12
    assert load.finished == {"length": 4}


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_an_abort_ends_all_answers(model: Model, steps: int) -> None:
    engine = model.engine(token_budget=30)
    submit(engine, "g", PROMPT, n=3, max_tokens=50)
    for _ in range(steps):
        engine.step()
        engine.check()
    engine.abort(b"gw", "g")
    engine.check()
    assert not engine.has_work
    assert run(engine) == {}
    assert engine.load().finished == {"abort": 3}


def test_a_failed_prompt_and_a_deadline_end_all_answers(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = model.engine()
    late = Submit(id="late", prompt=PROMPT, sampling=Sampling(max_tokens=5, n=3), timeout=0.0)
    assert engine.submit(b"gw", late) is None
    assert [answer.finish for answer in run(engine)["late"].values()] == ["deadline"] * 3
    submit(engine, "g", PROMPT, n=3)
    with monkeypatch.context() as broken:
        broken.setattr(model.runner, "launch", lambda batch: 1 / 0)
        [(_, first)] = engine.step()
    engine.check()
    assert (first.index, first.finish) == (0, "error")
    answers = run(engine)["g"]  # the others are still there, until somebody aborts them
    assert sorted(answers) == [1, 2]


@pytest.mark.parametrize("disturbance", DISTURBED)
def test_scores_are_raw_and_aligned(model: Model, disturbance: dict[str, Any]) -> None:
    """Whatever was done to the logits before sampling; also of tokens held back for a stop string."""
    options = {"temperature": 1.3, "top_k": 3, "repetition_penalty": 1.5, "logit_bias": {3: 50.0}}
    for answer in amid(
        model.engine(**disturbance), n=2, logprobs=4, stop=("ABCDEFGH", "ZZ"), **options
    ).values():
        logits = model.logits(PROMPT + answer.ids)[len(PROMPT) - 1 : -1]
        assert len(answer.ids) == 12
        assert is_right(answer.scores, logits, answer.ids, 4)


@pytest.mark.parametrize("disturbance", DISTURBED)
@pytest.mark.parametrize("max_tokens", [0, 6])
def test_scores_of_the_prompt(model: Model, disturbance: dict[str, Any], max_tokens: int) -> None:
    """In chunks, after preemptions, and when the cache holds the prompt (vllm#14239, #5334)."""
    engine = model.engine(**disturbance)
    options: dict[str, Any] = {"n": 2, "logprobs": 3, "prompt_logprobs": True, "max_tokens": max_tokens}
    for answers in (amid(engine, **options), ask(engine, **options)):
        first, second = answers[0], answers[1]
        assert is_right(first.prompt, model.logits(PROMPT)[:-1], PROMPT[1:], 3)
        assert (first.finish, len(first.ids), second.prompt) == ("length", max_tokens, [])
        assert first.cached == 0


def test_a_long_scored_prompt_runs_in_pieces(model: Model) -> None:
    engine = model.engine(token_budget=512)
    prompt = (PROMPT * 4)[: CONTEXT - 1]
    answer = ask(engine, prompt, logprobs=0, prompt_logprobs=True, max_tokens=1)[0]
    assert is_right(answer.prompt, model.logits(prompt)[:-1], prompt[1:], 0)


def test_a_prompt_of_one_token_has_nothing_to_score(model: Model) -> None:
    answer = ask(model.engine(), [7], logprobs=2, prompt_logprobs=True, max_tokens=2)[0]
    assert answer.prompt == []
    assert len(answer.scores) == 2
    assert ask(model.engine(), [7], max_tokens=0)[0].finish == "length"


def test_nothing_is_scored_unasked(model: Model) -> None:
    """Not even beside somebody who asks."""
    answers = amid(model.engine())
    assert answers[0].scores == answers[0].prompt == []


def test_no_end_before_min_tokens(model: Model) -> None:
    """Nearly everything would end it; stop strings too."""
    ends: dict[str, Any] = {
        "stop_token_ids": tuple(range(0, 280)),
        "ignore_eos": False,
        "stop": tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    }
    assert len(ask(model.engine(), **ends)[0].ids) == 1
    answer = ask(model.engine(), min_tokens=5, **ends)[0]
    assert len(answer.ids) == 5  # a stop string ends it: the fifth token's own
    assert set(answer.ids) <= set(range(280, 287))
    answer = ask(model.engine(), min_tokens=5, max_tokens=40, **{**ends, "stop": ()})[0]
    assert len(answer.ids) > 5
    assert set(answer.ids[:5]) <= set(range(280, 287))
    assert answer.finish == "stop"


def test_a_bias_decides(model: Model) -> None:
    answer = ask(model.engine(), logit_bias={33: 100.0, 34: -100.0}, logprobs=1)[0]
    assert answer.ids == [33] * 12
    assert all(score.logprob < -1e-3 and math.isfinite(score.logprob) for score in answer.scores)

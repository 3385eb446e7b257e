"""A real model and sampler: text, scores and signals are those without speculation, and so is the law."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from backends.engine.cache import BlockCache
from backends.engine.engine import Engine
from backends.engine.grammar import GrammarCompiler
from backends.engine.runner import ModelRunner, load_runner
from backends.engine.sequence import Sequence
from backends.engine.speculation.drafter import Drafter, Reading, Wish
from backends.engine.speculation.model_drafter import ModelDrafter
from backends.engine.speculation.ngram import NgramDrafter
from backends.instructions import cpu_has_avx2
from backends.wire import (
    DraftMethod,
    EngineConfig,
    FinishReason,
    Grammar,
    Output,
    Quantization,
    Sampling,
    Score,
    Signal,
    Speculation,
    Submit,
    Vocabulary,
)

DATA = [bytes([byte]) for byte in range(256)] + [b"he", b"  ", b"", b"", b""]
EOS, SIZE, CONTEXT = 260, 288, 128
PROMPT = [(7 * at * at + 3 * at) % 250 for at in range(20)]
WORDS = Grammar("regex", "[a-f]{3,9}( [a-f]{2,4})*")
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 1.0, "logprobs": 0, "signals": True},
    {"temperature": 0.7, "top_k": 3, "n": 2},
    {"temperature": 2.0, "top_p": 0.3, "min_p": 0.02},
    {"temperature": 1.0, "frequency_penalty": 1.0, "presence_penalty": 0.5, "repetition_penalty": 1.8, "logprobs": 1},
    {"temperature": 1.0, "logit_bias": {5: 4.0, EOS: 6.0}},
    {"temperature": 1.0, "logit_bias": {EOS: 100.0}, "min_tokens": 17},
    {"temperature": 0.0, "prompt_logprobs": True, "logprobs": 2},
    {"temperature": 1.0, "stop_token_ids": tuple(range(0, 40))},
    {"temperature": 1.0, "stop": tuple(chr(letter) for letter in range(48, 60)), "min_tokens": 6},
    {"temperature": 1.0, "grammar": WORDS, "signals": True, "logprobs": 2, "logit_bias": {EOS: 5.0}},
    {"temperature": 0.0, "grammar": WORDS, "min_tokens": 12, "frequency_penalty": 2.0},
    {"temperature": 1.0, "max_tokens": 1},
    {"temperature": 1.0, "max_tokens": 3},
    {"temperature": 1.0, "max_tokens": 500},  # the context ends before
]  # fmt: skip


@dataclass
class Answer:
    ids: list[int] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)
    prompt: list[Score] = field(default_factory=list)
    finish: FinishReason | None = None
    trim: int = 0

    def take(self, output: Output) -> None:
        self.ids += output.ids
        self.scores += output.scores
        self.signals += output.signals
        self.prompt += output.prompt
        self.finish, self.trim = output.finish, output.trim


Answers = dict[str, Answer]


class Replay:
    """Drafts the answers that have been given before, with every fifth token changed."""

    method: DraftMethod = "draft"

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def lag(self, sequence: Sequence, cache: BlockCache) -> int:
        return 0

    def prepare(self, wishes: list[Wish], cache: BlockCache, *, idle: bool) -> Reading | None:
        return None

    def propose(self, wishes: list[Wish], cache: BlockCache) -> list[list[int]]:
        return [self._draft(*wish) for wish in wishes]

    def _draft(self, sequence: Sequence, count: int) -> list[int]:
        said = len(sequence.ids) - sequence.prompt_length
        ids = self._answers[f"{sequence.id}.{sequence.index}"].ids[said : said + count]
        return [id if (said + place) % 5 else (id + 1) % SIZE for place, id in enumerate(ids)]

    def forget(self, sequence: Sequence) -> None:
        pass


@pytest.fixture(scope="module")
def load(
    write_gguf: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Quantization], ModelRunner]]:
    """Runners of the same model, its weights in one format or another, each with a cache of its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", "llama", "F32")

    def load(quantization: Quantization) -> ModelRunner:
        config = EngineConfig(
            name="e", model=str(path), socket="", vocabulary="", dtype="float32", kv_blocks=64,
            quantization=quantization,
        )  # fmt: skip
        return load_runner(config, SIZE)[0]

    yield load
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def runners(load: Callable[[Quantization], ModelRunner]) -> list[ModelRunner]:
    """Two of them."""
    return [load("none") for _ in range(2)]


@pytest.fixture
def runner(runners: list[ModelRunner]) -> ModelRunner:
    return runners[0]


@pytest.fixture
def engine(runner: ModelRunner) -> Callable[..., Engine]:
    return engines(runner)


def engines(runner: ModelRunner) -> Callable[..., Engine]:
    vocabulary, eos = Vocabulary(DATA, {EOS: "<end>"}), frozenset({EOS})
    compiler = GrammarCompiler(vocabulary, eos, SIZE)

    def make(*drafters: Drafter, **fields: Any) -> Engine:
        speculation = Speculation(gated=False, max_tokens=6, max_sequences=64)
        config = EngineConfig(
            name="e", model="", socket="", vocabulary="", speculation=speculation,
            **{"kv_blocks": 64, **fields},
        )  # fmt: skip
        return Engine(config, runner, DATA, eos, SIZE, CONTEXT, compile=compiler.compile, drafters=drafters)

    return make


def submit(engine: Engine, id: str, **sampling: Any) -> None:
    asked = Sampling(**{"max_tokens": 40, "seed": 3, **sampling})
    assert engine.submit(b"gw", Submit(id=id, prompt=PROMPT, sampling=asked)) is None


def run(engine: Engine) -> Answers:
    answers: Answers = {}
    while engine.has_work:
        for _, output in engine.step():
            answers.setdefault(f"{output.id}.{output.index}", Answer()).take(output)
        engine.check()
    assert engine.refusals() == []
    load = engine.load()
    assert load.blocks_free + load.blocks_cached == load.blocks_total
    return answers


def ask_all(engine: Engine) -> Answers:
    for number, sampling in enumerate(SAMPLINGS):
        submit(engine, str(number), **sampling)
    return run(engine)


def near(ours: list[Score], right: list[Score]) -> bool:
    return len(ours) == len(right) and all(
        math.isclose(one.logprob, other.logprob, abs_tol=1e-3)
        and [id for id, _ in one.top] == [id for id, _ in other.top]
        for one, other in zip(ours, right, strict=True)
    )


def test_nothing_that_is_told_changes(engine: Callable[..., Engine], runners: list[ModelRunner]) -> None:
    """All at once, with few blocks too, so that drafts meet preemption."""
    plain = ask_all(engine())
    for blocks in (64, 11):
        itself = ModelDrafter(runners[1], blocks, CONTEXT)
        for drafters in ((Replay(plain),), (NgramDrafter(), Replay(plain)), (NgramDrafter(), itself)):
            drafting = engine(*drafters, kv_blocks=blocks)
            answers = ask_all(drafting)
            assert answers.keys() == plain.keys()
            for name, right in plain.items():
                ours = answers[name]
                assert (ours.ids, ours.finish, ours.trim) == (right.ids, right.finish, right.trim), name
                assert near(ours.scores, right.scores) and near(ours.prompt, right.prompt), name
                assert [signal.forced for signal in ours.signals] == [each.forced for each in right.signals]
                assert all(
                    math.isclose(one.logprob, other.logprob, abs_tol=1e-3)
                    and math.isclose(one.entropy or 0, other.entropy or 0, abs_tol=1e-3)
                    for one, other in zip(ours.signals, right.signals, strict=True)
                )
            load = drafting.load()
            assert load.drafts > 8
            assert (load.preemptions > 0) == (blocks == 11)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_on_weights_of_integers_not_a_bit_changes(
    load: Callable[[Quantization], ModelRunner], quantization: Quantization
) -> None:
    """Neither by drafts, nor by company, chunks, a prefix in the cache or being preempted: scores and signals too.

    Rounding to integers makes much of any difference, however small.
    """
    if quantization == "int4" and not cpu_has_avx2():
        pytest.skip("this CPU has no kernel for int4")
    engine = engines(load(quantization))
    alone: Answers = {}
    for number, sampling in enumerate(SAMPLINGS):
        one = engine()
        submit(one, str(number), **sampling)
        alone |= run(one)
    ways: list[tuple[tuple[Drafter, ...], dict[str, Any]]] = [
        ((), {}),
        ((Replay(alone),), {}),
        ((NgramDrafter(), Replay(alone)), {"kv_blocks": 11}),
        ((Replay(alone),), {"token_budget": 7}),
    ]
    for drafters, fields in ways:
        assert ask_all(engine(*drafters, **fields)) == alone, fields


def test_a_model_that_drafts_for_itself_is_always_right(
    engine: Callable[..., Engine], runners: list[ModelRunner]
) -> None:
    """For it draws with the same noise, from the same logits after the same adjustments; but for its last rounding."""
    drafting = engine(ModelDrafter(runners[1], 64, CONTEXT))
    ask_all(drafting)
    load = drafting.load()
    assert load.drafted_tokens > 150
    assert load.accepted_tokens >= 0.99 * load.drafted_tokens


def test_drafts_are_accepted_up_to_what_was_changed(engine: Callable[..., Engine]) -> None:
    plain = engine()
    submit(plain, "0", temperature=0.0, ignore_eos=True)
    drafting = engine(Replay(run(plain)))
    submit(drafting, "0", temperature=0.0, ignore_eos=True)
    run(drafting)
    load = drafting.load()
    assert load.accepted_by_position == (8, 8, 8, 7, 0, 0)  # the last one ends by length
    assert load.steps == 1 + 8


def test_the_law_is_the_models(engine: Callable[..., Engine]) -> None:
    """The first three tokens of many seeds, drawn among the two likeliest, where a draft says the likeliest."""
    ways = [f"{first}{second}{third}" for first in "01" for second in "01" for third in "01"]
    likeliest = Answer()
    expected = {}
    ids: dict[str, list[int]] = {"": []}
    chances = {"": 1.0}
    for way in ["", *(way[:length] for length in (1, 2) for way in ways[:: 2 ** (3 - length)])]:
        [[one, p], [two, q]] = top_two(engine(), ids[way])
        share = math.exp(p) / (math.exp(p) + math.exp(q))
        for turn, token, chance in (("0", one, share), ("1", two, 1 - share)):
            ids[way + turn], chances[way + turn] = [*ids[way], token], chances[way] * chance
    expected = {way: chances[way] for way in ways}
    assert sum(expected.values()) == pytest.approx(1)
    likeliest.ids = ids["000"]
    names = {tuple(ids[way]): way for way in ways}
    drawn: Counter[str] = Counter()
    seeds = 1600
    drafting = engine(Likeliest(likeliest.ids), kv_blocks=64, interactive_sequences=64, max_sequences=64)
    for seed in range(seeds):
        submit(drafting, str(seed), seed=seed, max_tokens=3, top_k=2, ignore_eos=True)
        if seed % 64 == 63 or seed == seeds - 1:
            drawn.update(names[tuple(answer.ids)] for answer in run(drafting).values())
    assert drafting.load().accepted_tokens > seeds / 20
    law = [seeds * expected[way] for way in ways]
    assert chisquare([drawn[way] for way in ways], law).pvalue > 1e-3


class Likeliest(Replay):
    """Says the same to everybody."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def _draft(self, sequence: Sequence, count: int) -> list[int]:
        said = len(sequence.ids) - sequence.prompt_length
        return self._ids[said : said + count]


def top_two(engine: Engine, said: list[int]) -> list[tuple[int, float]]:
    """The likeliest two tokens after the prompt and `said`."""
    sampling = Sampling(max_tokens=1, logprobs=2)
    assert engine.submit(b"gw", Submit(id="q", prompt=PROMPT + said, sampling=sampling)) is None
    [answer] = run(engine).values()
    return answer.scores[0].top

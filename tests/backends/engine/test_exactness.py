"""Greedy answers of the whole engine are those of `transformers`, whatever makes them fast.

The oracle reads prompt and answer in one forward pass: every token of the answer must be the one it would choose
there, or lie within NEAR_TIE of it. That is greedy equality, and stays meaningful after a near-tie.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.engine.engine import Engine
from backends.engine.runner import load_runner
from backends.engine.speculation.drafter import Drafter
from backends.engine.speculation.ngram import NgramDrafter
from backends.models.checkpoint import open_checkpoint
from backends.prompt import ChatMessage, Prompt
from backends.tokenizer import Tokenizer
from backends.wire import EngineConfig, Sampling, Speculation, Submit

pytestmark = [pytest.mark.models, pytest.mark.timeout(900)]  # a float32 model on a machine that may be busy

ANSWER = 40  # tokens
NEAR_TIE = 1e-3  # of logits

PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about a water wheel.",
    "Explain how a bicycle stays upright, for a child of ten.",
    "def fibonacci(n):",
    "Translate to German: The mill stands by the river.",
    "List three prime numbers between 10 and 30.",
    "Přelož do angličtiny: Kolo se točí.",
    "用一句话介绍长城。",
    "Summarize: Water flows through a channel to the wheel. The wheel turns a shaft. The shaft turns a stone.",
    "Sort these words: pear, apple, fig, banana.",
    "If a train travels 60 km in 45 minutes, how fast is it in km/h?",
    "🙂🙃 Which emoji comes next?",
    "SELECT name FROM users WHERE",
    "Tell me a short story about a lighthouse keeper who is afraid of the dark and of the sea. " * 4,
    "Is 91 a prime number? Think step by step.",
    "{\"name\": \"Ada\", \"born\": 1815} -- what is this format called?",
    "Give me a recipe with exactly three ingredients.",
    "What rhymes with orange?",
    "A",
    "Repeat after me: tick tock tick tock tick tock tick tock. " * 12,
]  # fmt: skip

Answers = list[list[int]]


class Oracle:
    """SmolLM2 in transformers, float32, with the same dequantised weights."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        checkpoint = open_checkpoint(folder)
        self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
        weights = {name: checkpoint.load(name, torch.float32) for name in checkpoint.names()}
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"}
        self.model.tie_weights()
        self.model.generation_config.eos_token_id = None  # an end token is a token like any other here
        self.model.eval()
        self._judged: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, float]]] = {}

    def wrong(self, prompt: list[int], answer: list[int]) -> list[tuple[int, float]]:
        """Positions where the answer is not greedy, and by how much its logit falls short of the best."""
        key = tuple(prompt), tuple(answer)  # most answers are given again and again
        if key not in self._judged:
            self._judged[key] = self._judge(prompt, answer)
        return self._judged[key]

    def _judge(self, prompt: list[int], answer: list[int]) -> list[tuple[int, float]]:
        with torch.inference_mode():
            logits = self.model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        short = logits.max(-1).values - logits.gather(-1, torch.tensor(answer)[:, None])[:, 0]
        return [(place, gap) for place, gap in enumerate(short.tolist()) if gap > NEAR_TIE]

    def generate(self, prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            mask = torch.ones_like(ids)
            out = self.model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=ANSWER, do_sample=False, pad_token_id=0
            )
        return list(map(int, out[0, len(prompt) :]))


@pytest.fixture(scope="module")
def oracle(smollm2_folder: Path) -> Oracle:
    return Oracle(smollm2_folder)


@pytest.fixture(scope="module")
def prompts(smollm2_folder: Path) -> Answers:
    tokenizer = Tokenizer(smollm2_folder)
    chats = [Prompt(messages=(ChatMessage(role="user", content=text),)) for text in PROMPTS]
    return [tokenizer.encode_now(chat) for chat in chats]


@pytest.fixture(scope="module")
def make_engine(smollm2_folder: Path) -> Iterator[Callable[..., Engine]]:
    """Engines over one set of weights. `make_engine(token_budget=…, kv_blocks=…)`."""
    loaded: dict[int, Any] = {}

    def make(*drafters: Drafter, token_budget: int = 512, kv_blocks: int = 512) -> Engine:
        config = EngineConfig(
            name="exact", model=str(smollm2_folder), socket="", vocabulary="", dtype="float32",
            kv_blocks=kv_blocks, token_budget=token_budget, speculation=Speculation(gated=False),
        )  # fmt: skip
        if kv_blocks not in loaded:
            loaded[kv_blocks] = load_runner(config)
        runner, _, vocabulary, context = loaded[kv_blocks]
        return Engine(
            config, runner, [b"x"] * vocabulary, frozenset(), vocabulary, context, drafters=drafters
        )

    yield make
    loaded.clear()


def run(
    engine: Engine, prompts: Answers, salt: bytes = b"", length: int = ANSWER
) -> tuple[Answers, list[int]]:
    """All at once. Returns the answers and how many prompt tokens of each were cached."""
    sampling = Sampling(max_tokens=length, temperature=0.0, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        assert engine.submit(b"", Submit(id=str(number), prompt=prompt, sampling=sampling, salt=salt)) is None
    answers: Answers = [[] for _ in prompts]
    cached = [0] * len(prompts)
    while engine.has_work:
        for _, output in engine.step():
            answers[int(output.id)] += output.ids
            cached[int(output.id)] = output.cached
        engine.check()
    assert [len(answer) for answer in answers] == [length] * len(prompts)
    return answers, cached


def all_right(oracle: Oracle, prompts: Answers, answers: Answers) -> bool:
    faults = {
        PROMPTS[number]: wrong
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
        if (wrong := oracle.wrong(prompt, answer))
    }
    assert faults == {}
    return True


def test_alone(oracle: Oracle, prompts: Answers, make_engine: Callable[..., Engine]) -> None:
    """A few tokens each: one by one is the slowest way."""
    engine = make_engine()
    answers = [run(engine, [prompt], length=12)[0][0] for prompt in prompts]
    assert all_right(oracle, prompts, answers)


def test_the_oracle_itself_generates_the_same(
    oracle: Oracle, prompts: Answers, make_engine: Callable[..., Engine]
) -> None:
    """Token by token against `generate`, so that the one-pass oracle above is itself checked."""
    for prompt in prompts[:3]:
        assert run(make_engine(), [prompt])[0][0] == oracle.generate(prompt)


def test_among_others(oracle: Oracle, prompts: Answers, make_engine: Callable[..., Engine]) -> None:
    answers, _ = run(make_engine(), prompts)
    assert all_right(oracle, prompts, answers)


def test_with_drafts(oracle: Oracle, prompts: Answers, make_engine: Callable[..., Engine]) -> None:
    """Looked up in what was said; small models repeat themselves."""
    engine = make_engine(NgramDrafter())
    answers, _ = zip(*(run(engine, prompts[at : at + 5]) for at in range(0, len(prompts), 5)), strict=True)
    assert all_right(oracle, prompts, [answer for part in answers for answer in part])
    load = engine.load()
    assert load.drafted_tokens > load.accepted_tokens > len(prompts)


def test_in_chunks_of_32(oracle: Oracle, prompts: Answers, make_engine: Callable[..., Engine]) -> None:
    answers, _ = run(make_engine(token_budget=32), prompts)
    assert all_right(oracle, prompts, answers)


def test_on_a_cached_prefix(oracle: Oracle, prompts: Answers, make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    run(engine, prompts, b"tenant", length=1)
    answers, cached = run(engine, prompts, b"tenant")
    assert all(count == (len(prompt) - 1) // 16 * 16 for count, prompt in zip(cached, prompts, strict=True))
    assert all_right(oracle, prompts, answers)
    _, foreign = run(engine, prompts, b"another tenant", length=1)
    # No more than the template's own words, which these prompts share among themselves.
    assert max(foreign) < 48


def test_preempted(oracle: Oracle, prompts: Answers, make_engine: Callable[..., Engine]) -> None:
    """A pool that cannot hold them all: some are thrown out and computed again."""
    engine = make_engine(kv_blocks=40)
    answers, _ = run(engine, prompts)
    assert engine.load().preemptions > 0
    assert all_right(oracle, prompts, answers)

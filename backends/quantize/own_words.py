"""What a model itself says, to be watched on: every other text begins with words of ours, every other one with a token
by chance, and all go on by chance.

So the calibration is of the kind of text that the model was made for, in its own format of conversations, and no text
of anybody else is needed. Our words alone have a model say too much alike. From any token of its vocabulary it comes to
all sorts of texts that it has learned from, as LLM-QAT found (arXiv:2305.17888), most of all where unlikely tokens are
not cut off.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path

import torch

from backends.backend import Prompt
from backends.engine.engine import Engine
from backends.engine.runner import load_runner
from backends.instructions import cpu_has_avx2
from backends.prompt import ChatMessage
from backends.quantize.calibration import cut
from backends.tokenizer import TemplateError, Tokenizer
from backends.wire import Band, EngineConfig, Sampling, Submit

ASKED = (
    "Explain how a bicycle stays upright.",
    "Write a Python function that merges two sorted lists.",
    "Translate to French: The train leaves at noon.",
    "What is 37 * 14? Show each step.",
    "Write a short story about a lighthouse keeper.",
    "Summarise in two sentences why leaves change colour in autumn.",
    "Give me a JSON object with a name, an age and three hobbies.",
    "Write an SQL query for the ten customers with the most orders.",
    "My laptop does not start any more. What can I check?",
    "List five vegetables and what each is good for.",
    "Write a polite letter that declines an invitation.",
    "What are the differences between TCP and UDP?",
    "Fix this code: for i in range(10) print(i)",
    "A shop sells pens at 3 for 2 euros. What do 15 pens cost?",
    "Describe the water cycle for a child.",
    "Write a regular expression for dates such as 2024-05-31.",
    "Übersetze ins Englische: Der Schlüssel liegt unter der Matte.",
    "Which countries border Switzerland?",
    "Write a shell command that finds large files.",
    "Is it true that glass is a liquid? Reason step by step.",
)
BEGUN = (
    "The history of the harbour begins",
    "def parse_arguments(argv):\n",
    "import numpy as np\n\n\nclass ",
    "Dear Ms Keller,\n\n",
    "# Installation\n\n",
    "In a recent study, researchers",
    '{"id": 1, "items": [',
    "Chapter 1\n\nIt was raining when",
    "public static void main(String[] args) {",
    "Q: How do I boil an egg?\nA:",
    "Ingredients:\n- 200 g flour\n",
    "SELECT name, count(*) FROM",
)
_ROWS = 32  # at a time

Start = tuple[list[int], float]
"""Tokens that a text begins with, and what share of the likeliest tokens it goes on with (top_p)."""


def own_words(
    folder: Path, samples: int, length: int, device: str, told: Callable[[int], object] = lambda count: None
) -> torch.Tensor:
    """int64 [samples, length] of token ids, the same for the same model on the same machine.

    `told`: how many tokens the model has said since it was told last. Raises CheckpointError, ModelError, ValueError.
    """
    tokenizer = Tokenizer(folder)
    starts = starts_of(tokenizer, length)
    rows = min(_ROWS, samples)
    config = EngineConfig(
        name="calibration", model=str(folder), socket="", vocabulary="", device=device,
        quantization="auto" if device == "cpu" and cpu_has_avx2() else "none",
        kv_blocks=rows * (-(-2 * length // 16) + 1), bands=(Band(rows=rows, ttft_ms=60_000),),
        interactive_sequences=rows, max_waiting=samples, tenant_share=1.0, session_share=1.0, step_budget_ms=5_000,
    )  # fmt: skip
    runner, eos, size, context = load_runner(config, len(tokenizer.vocabulary()))
    engine = Engine(config, runner, tokenizer.vocabulary(), eos, size, context)
    tokens: list[int] = []
    seed = 0
    while len(tokens) < samples * length:
        wave = [next(starts) for _ in range(rows)]
        tokens += [token for said in _said(engine, wave, seed, length, told) for token in said]
        seed += rows
    return cut(tokens, samples, length)


def starts_of(tokenizer: Tokenizer, length: int) -> Iterator[Start]:
    """Without end, the same each time: those of ours in turn, and between them tokens by chance."""
    chance = random.Random(0)
    spoken = [id for id, text in enumerate(tokenizer.vocabulary()) if text]
    for ours in cycle(list(_ours(tokenizer, length))):
        yield ours, 0.95
        yield [chance.choice(spoken)], 1.0


def _ours(tokenizer: Tokenizer, length: int) -> Iterator[list[int]]:
    for asked in ASKED:
        try:
            yield tokenizer.encode_now(Prompt(messages=(ChatMessage(role="user", content=asked),)))[:length]
        except TemplateError:
            break  # it continues plain text only
    for begun in BEGUN:
        yield tokenizer.encode_now(Prompt(text=begun))[:length]


def _said(
    engine: Engine, starts: Sequence[Start], seed: int, length: int, told: Callable[[int], object]
) -> list[list[int]]:
    """Each start with what the model says behind it, `length` tokens at most."""
    texts = [list(start) for start, _ in starts]
    for at, (start, top_p) in enumerate(starts):
        sampling = Sampling(max_tokens=length, temperature=1.0, top_p=top_p, seed=seed + at)
        refused = engine.submit(b"", Submit(id=str(at), prompt=start, sampling=sampling, traffic="batch"))
        if refused is not None:
            raise ValueError(f"the model's own words: {refused.message}")
    while engine.has_work:
        for _, output in engine.step():
            if output.error is not None:
                raise ValueError(f"the model's own words: {output.error}")
            texts[int(output.id)] += output.ids
            told(len(output.ids))
    return texts

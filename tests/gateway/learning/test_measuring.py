"""A small random model on tasks of every kind, by an engine, against what its weights say."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gateway.config import Engine
from gateway.learning.checkers import Regex
from gateway.learning.measuring import measure
from gateway.learning.samples import Sample
from gateway.learning.tasks import Choice, Piece, Task

WIDTH = 32  # of the model


def expected(text: str, folder: Path) -> float:
    """Nats of a text, by the weights: x / rms(x) is the embedding times √width."""
    tensors = load_file(folder / "model.safetensors")
    embedding, head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    ids = list(text.encode())
    logits = (embedding[ids[:-1]] * WIDTH**0.5) @ head.T
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum"))


async def test_marks_of_every_kind(letters_model: Path) -> None:
    texts = ["abcdefgh", "the quick brown fox", "xyxyxy"]
    tasks = [
        Task("t", "perplexity", "", [Piece(text) for text in texts]),
        Task("c", "choices", "", [Choice("say abc", ("bcdefg", "qqqqqqqqq", "z"), n) for n in (0, 1)]),
        Task(
            "a", "answers", "",
            [Sample(prompt="mn", checker=Regex(pattern), max_tokens=4) for pattern in ("opqr", "n.*")],
        ),
    ]  # fmt: skip
    told: list[int] = []
    engine = Engine(model=str(letters_model), kv_tokens=1024, dtype="float32")
    perplexity, choices, answers = await measure(engine, tasks, 4, lambda: told.append(1))
    for text, mark in zip(texts, perplexity, strict=True):
        assert mark.weight == len(text) - 1
        assert math.isclose(mark.value, expected(text, letters_model), rel_tol=1e-4)
    assert [mark.value for mark in choices] == [1.0, 0.0]
    assert [mark.value for mark in answers] == [1.0, 0.0]
    assert len(told) == 7


async def test_what_does_not_fit_is_named(letters_model: Path) -> None:
    tasks = [Task("long.txt", "perplexity", "", [Piece("a"), Piece("a" * 2100)])]
    engine = Engine(model=str(letters_model), kv_tokens=1024, dtype="float32")
    with pytest.raises(ValueError, match=r"^long\.txt, item 2: .*2100 tokens"):
        await measure(engine, tasks, 1, lambda: None)

"""The sampler draws the law that it should: chi-square on a small vocabulary, through the code that serves."""

import math
from typing import Any

import pytest
import torch

from backends.engine.adjustments import adjust
from backends.engine.batch import Choice, Pick, Seen
from backends.engine.sampler import sample
from backends.kernels.layout import KVCache
from backends.kernels.reference import Kernels
from backends.kernels.select import kernels_for
from backends.kernels.truncation import truncate
from backends.wire import Sampling

LOGITS = [2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0]
DRAWS = 6_000
# Of the chi-square law with 1 to 9 degrees of freedom: the value that one run in a million exceeds.
CRITICAL = [23.9, 27.6, 30.7, 33.4, 35.9, 38.3, 40.5, 42.7, 44.8]


@pytest.fixture(params=["reference", "serving"], scope="module")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Both draws: the plain one, and the one that this machine serves with."""
    cache = KVCache(1, 1, 16, 1, 16, dtype=torch.float32, device=torch.device("cpu"))
    table = torch.zeros(16, 8)
    return (
        Kernels(cache, table, table, 1)
        if request.param == "reference"
        else kernels_for(cache, table, table, 1)
    )


def drawn(kernels: Kernels, seen: Seen | None = None, seed: int = 7, **options: Any) -> torch.Tensor:
    """How often each token comes, [vocabulary]: many positions of one seed."""
    sampling = Sampling(max_tokens=1, seed=seed, **options)
    picks = [Pick(0, 0, sampling, Choice(seen))]
    logits = adjust(torch.tensor([LOGITS]), picks).repeat(DRAWS, 1)
    ids = sample(logits, [sampling] * DRAWS, range(DRAWS), kernels)
    return torch.bincount(ids, minlength=len(LOGITS))


def law(scores: list[float], kept: int | None = None) -> list[float]:
    """The softmax of the first `kept` scores (they are sorted), 0 for the rest."""
    weights = [math.exp(score) if kept is None or at < kept else 0.0 for at, score in enumerate(scores)]
    return [weight / sum(weights) for weight in weights]


def chi_square(counts: torch.Tensor, probabilities: list[float]) -> float:
    """How far from the law, in units of what one run in a million exceeds."""
    cells = [(int(n), p * DRAWS) for n, p in zip(counts, probabilities, strict=True) if p > 0]
    assert sum(n for n, _ in cells) == DRAWS, "a token came that has no probability"
    statistic = sum((n - expected) ** 2 / expected for n, expected in cells)
    return statistic / CRITICAL[len(cells) - 2]


SEEN = Seen(frozenset({0, 9}))
SEEN.output.update({1: 3, 2: 1})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, law(LOGITS)),
        ({"temperature": 0.5}, law([2 * logit for logit in LOGITS])),
        ({"temperature": 1.7}, law([logit / 1.7 for logit in LOGITS])),
        ({"top_k": 4}, law(LOGITS, 4)),
        ({"top_p": 0.8}, law(LOGITS, 4)),  # 0.396, 0.240, 0.146 make 0.78; the fourth passes 0.8
        ({"min_p": 0.2}, law(LOGITS, 4)),  # exp(-1.5) = 0.22 of the best, exp(-2) = 0.14
        ({"min_p": 0.2, "temperature": 0.5}, law([2 * logit for logit in LOGITS], 2)),
        ({"top_k": 5, "top_p": 0.9, "min_p": 0.1}, law(LOGITS, 4)),  # 0.9 of what top-k leaves
        ({"logit_bias": {9: 5.0, 0: -100.0}}, law([-98.0, *LOGITS[1:9], 2.0])),
        (
            {"seen": SEEN, "presence_penalty": 0.5, "frequency_penalty": 0.25},
            law([2.0, 0.25, 0.25, *LOGITS[3:]]),
        ),
        ({"seen": SEEN, "repetition_penalty": 2.0}, law([1.0, 0.75, 0.5, *LOGITS[3:9], -6.0])),
    ],
)
def test_the_law(kernels: Kernels, options: dict[str, Any], expected: list[float]) -> None:
    assert chi_square(drawn(kernels, **options), expected) < 1


@pytest.mark.parametrize("temperature", [1e-30, 1e-40, 1e-50, 1e-310])
def test_a_temperature_near_zero_takes_the_likeliest(kernels: Kernels, temperature: float) -> None:
    """float32 knows the last two of these as 0; the likeliest token is not the first here."""
    logits = torch.tensor([LOGITS[::-1]])
    sampling = Sampling(max_tokens=1, temperature=temperature, top_p=0.9, min_p=0.1)
    assert not truncate(logits, [sampling]).isnan().any()
    assert sample(logits, [sampling], [0], kernels).tolist() == [len(LOGITS) - 1]


def test_the_test_itself_finds_what_is_wrong(kernels: Kernels) -> None:
    """A quarter more of temperature, or one token too many, does not pass."""
    assert chi_square(drawn(kernels, temperature=1.25), law(LOGITS)) > 1
    with pytest.raises(AssertionError, match="no probability"):
        chi_square(drawn(kernels, top_k=5), law(LOGITS, 4))


def test_the_law_over_seeds(kernels: Kernels) -> None:
    """At one position; neighbouring seeds are as good as any."""
    samplings = [Sampling(max_tokens=1, seed=seed) for seed in range(DRAWS)]
    ids = sample(torch.tensor([LOGITS]).repeat(DRAWS, 1), samplings, [5] * DRAWS, kernels)
    assert chi_square(torch.bincount(ids, minlength=len(LOGITS)), law(LOGITS)) < 1


def test_a_row_is_drawn_as_if_alone(kernels: Kernels) -> None:
    """vllm#51226: a seed was ignored beside a neighbour without one."""
    torch.manual_seed(0)
    logits = torch.randn(6, 500)
    samplings = [
        Sampling(max_tokens=1, seed=3, temperature=0.9, min_p=0.05),
        Sampling(max_tokens=1, temperature=0.0),
        Sampling(max_tokens=1, seed=4, top_k=7),
        Sampling(max_tokens=1, seed=5, top_p=0.4),
        Sampling(max_tokens=1, seed=3),
        Sampling(max_tokens=1, seed=6, min_p=1.0),
    ]
    together = sample(logits, samplings, range(6), kernels).tolist()
    alone = [
        int(sample(logits[at : at + 1], [sampling], [at], kernels)) for at, sampling in enumerate(samplings)
    ]
    assert together == alone
    assert together[5] == int(logits[5].argmax())

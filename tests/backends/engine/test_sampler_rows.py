"""A row's token depends on its own logits, Sampling and position, and on nothing else; the edges of truncation."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.sampler import sample
from backends.kernels.cpu import Cpu
from backends.kernels.layout import KVCache
from backends.kernels.reference import Kernels
from backends.kernels.truncation import NUCLEUS, truncate
from backends.wire import Sampling

LOGITS = torch.tensor([2.0, 1.5, 1.5, 0.3, 0.0, -0.5, -1.0, -4.0])


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Cpu(KVCache(1, 1, 1, 1, 2, dtype=torch.float32), torch.zeros(1, 1), torch.zeros(1, 1), 1)


def sampling(**fields: Any) -> Sampling:
    return Sampling(max_tokens=1, **fields)


samplings = st.builds(
    sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 40]),
    top_p=st.sampled_from([1.0, 0.9, 0.2]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=50)
@given(st.lists(samplings, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_row_draws_the_same_in_any_batch(kernels: Kernels, rows: list[Sampling], random: Any) -> None:
    logits = torch.randn(len(rows), 300, generator=torch.Generator().manual_seed(len(rows))).bfloat16()
    positions = [random.randrange(10_000) for _ in rows]
    together = sample(logits, rows, positions, kernels).tolist()
    alone = [
        sample(logits[row : row + 1], [rows[row]], [positions[row]], kernels).item()
        for row in range(len(rows))
    ]
    assert together == alone
    order = random.sample(range(len(rows)), len(rows))
    shuffled = sample(logits[order], [rows[row] for row in order], [positions[row] for row in order], kernels)
    assert shuffled.tolist() == [together[row] for row in order]


def test_seed_and_position_decide(kernels: Kernels) -> None:
    flat = torch.zeros(1, 50_000)

    def at(seed: int, position: int) -> int:
        return int(sample(flat, [sampling(seed=seed)], [position], kernels))

    assert at(1, 1) == at(1, 1)
    assert len({at(seed, position) for seed in (0, 1, 2**64 - 1) for position in (0, 1, 2)}) == 9


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-3])
def test_no_temperature_and_the_smallest_are_greedy(kernels: Kernels, temperature: float) -> None:
    logits = torch.randn(5, 1000) * 50
    ids = sample(logits, [sampling(temperature=temperature)] * 5, range(5), kernels)
    assert ids.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, 8),
        ({"top_k": 1}, 1),
        ({"top_k": 2}, 3),  # the second and the third are equal: ids break no ties
        ({"top_k": 50}, 8),
        ({"top_p": 1e-9}, 1),
        ({"top_p": 0.5}, 3),
        ({"top_p": 0.75}, 3),
        ({"temperature": 2.0, "top_p": 0.75}, 4),  # the temperature comes first
        ({"temperature": 2.0, "top_k": 4, "top_p": 0.75}, 3),  # the share of what top-k has left
    ],
)
def test_what_is_kept(fields: dict[str, Any], kept: int) -> None:
    scores = truncate(LOGITS.expand(2, -1), [sampling(**fields), sampling()])
    assert scores.isfinite().sum(-1).tolist() == [kept, 8]  # the other row keeps all
    assert scores[0, 0] == 0


def test_a_nucleus_wider_than_the_first_look_is_still_exact() -> None:
    """A flat law: most tokens belong to the nucleus, so that the whole row must be sorted."""
    logits = torch.linspace(0, 0.5, 4 * NUCLEUS)[torch.randperm(4 * NUCLEUS)]
    scores = truncate(logits[None], [sampling(top_p=0.8)])[0]
    ranked = logits.double().softmax(-1).sort(descending=True).values
    expected = int((ranked.cumsum(-1) < 0.8).sum()) + 1
    assert abs(int(scores.isfinite().sum()) - expected) <= 1  # one for the float32 sum
    assert scores[logits.argmax()] == 0

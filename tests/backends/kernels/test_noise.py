"""The noise is SplitMix64's, uniform, and the same from both implementations of the draw."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.kernels.cpu import Cpu
from backends.kernels.layout import KVCache
from backends.kernels.noise import gumbel, row_key, signed, uniform
from backends.kernels.reference import Kernels

UNSIGNED = st.integers(0, 2**64 - 1)


@pytest.fixture(scope="module")
def both() -> tuple[Kernels, Kernels]:
    cache, table = KVCache(1, 1, 1, 1, 2, dtype=torch.float32), torch.zeros(1, 1)
    return Kernels(cache, table, table, 1), Cpu(cache, table, table, 1)


def test_the_generator_is_splitmix64() -> None:
    """Against the first outputs of the published generator for the seed 1234567."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    ours = uniform(torch.tensor([1234567]), 4)[0]
    expected = [((value >> 12) + 0.5) / 2**52 for value in published]
    assert ours.tolist() == expected


def test_uniform_numbers_are_uniform_and_never_0_or_1() -> None:
    numbers = uniform(torch.tensor([row_key(seed, 3) for seed in range(20)]), 50_000).flatten().sort().values
    assert 0 < numbers[0] and numbers[-1] < 1
    law = torch.arange(len(numbers)) / len(numbers)
    assert (numbers - law).abs().max() < 1.95 / len(
        numbers
    ) ** 0.5  # Kolmogorov and Smirnov, one in a thousand


def test_the_ends_of_the_interval_stay_open() -> None:
    """The extreme bit patterns that a generator may give."""
    extremes = (torch.tensor([0, 2**52 - 1]).double() + 0.5) * 2.0**-52
    assert (extremes > 0).all() and (extremes < 1).all()
    assert (-torch.log(-torch.log(extremes))).isfinite().all()


def test_positions_and_seeds_do_not_overlap() -> None:
    """A key that only moved along with the position would give the next token this one's noise."""
    keys = [row_key(seed, position) for seed in range(50) for position in range(50)]
    assert len(set(keys)) == len(keys)
    rows = uniform(torch.tensor(keys[:50]), 200)
    for one, other in pairwise(rows):
        assert not np.intersect1d(one, other).size


@given(UNSIGNED, st.integers(0, 2**32))
def test_keys_fit_a_signed_tensor(seed: int, position: int) -> None:
    key = row_key(seed, position)
    assert torch.tensor(key).item() == key
    assert signed(key % 2**64) == key


@settings(max_examples=60)
@given(UNSIGNED, st.integers(0, 40_000), st.sampled_from([0.0, 0.1, 3.0, 30.0]), st.integers(1, 3000))
def test_the_loop_draws_what_plain_torch_draws(
    both: tuple[Kernels, Kernels], seed: int, position: int, spread: float, vocabulary: int
) -> None:
    scores = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(position)) * spread
    scores[1, 1::2] = -torch.inf  # left out by top-k or top-p
    keys = torch.tensor([row_key(seed, position + row) for row in range(3)])
    plain, loop = (kernels.draw(scores, keys) for kernels in both)
    assert loop.tolist() == plain.tolist()
    assert loop[1] % 2 == 0


def test_gumbel_noise_has_gumbels_mean_and_variance() -> None:
    noise = gumbel(torch.tensor([row_key(1, position) for position in range(10)]), 100_000)
    assert abs(noise.mean() - 0.5772157) < 5e-3
    assert abs(noise.var() - torch.pi**2 / 6) < 2e-2

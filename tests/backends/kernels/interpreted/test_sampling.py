"""Truncation and the draw give the tokens that plain torch gives: a seed's text is the same on a GPU."""

from dataclasses import dataclass

import pytest
import torch

from backends.kernels import triton_sampling
from backends.kernels.noise import row_key
from backends.kernels.reference import Kernels
from backends.kernels.triton_sampling import draw
from backends.kernels.truncation import truncate


@dataclass(frozen=True)
class Sampled:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


LAWS = [
    Sampled(),
    Sampled(temperature=0.3),
    Sampled(top_k=1),
    Sampled(top_k=7),
    Sampled(top_k=5000),
    Sampled(top_p=0.9),
    Sampled(top_p=1e-9),
    Sampled(top_p=0.999, temperature=2.0),
    Sampled(min_p=0.05),
    Sampled(min_p=1.0),
    Sampled(temperature=0.8, top_k=40, top_p=0.7, min_p=0.02),
    Sampled(temperature=1e-30, top_p=0.5),
    Sampled(temperature=1e-45),
]


@pytest.mark.filterwarnings("ignore:overflow")  # numpy tells of infinite scores at temperatures near 0
@pytest.mark.parametrize("vocabulary", [2049, pytest.param(300, marks=pytest.mark.slow)])
def test_truncation_equals_plain_torch(vocabulary: int) -> None:
    logits = torch.randn(len(LAWS), vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 3
    logits[:, 5] = -torch.inf  # banned
    ours, plain = triton_sampling.truncate(logits, LAWS), truncate(logits, LAWS)
    assert torch.equal(ours, plain)


def test_ties_stay_together() -> None:
    logits = torch.tensor([[2.0, 1.5, 1.5, 0.3, 1.5, -1.0]])
    for law, kept in ((Sampled(top_k=2), 4), (Sampled(top_p=0.5), 4), (Sampled(top_k=4), 4)):
        assert triton_sampling.truncate(logits, [law]).isfinite().sum() == kept


def test_equal_logits_are_all_kept() -> None:
    assert triton_sampling.truncate(torch.zeros(1, 40), [Sampled(top_k=3, top_p=0.2)]).eq(0).all()


@pytest.mark.parametrize(("vocabulary", "spread"), [(1, 1.0), (500, 3.0), (5000, 0.0), (5000, 8.0)])
def test_the_draw_equals_plain_torch(vocabulary: int, spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces a row and several tiles a piece; a flat law wherever the bound lets everything through."""
    monkeypatch.setattr(triton_sampling, "PIECES", 2)
    rows = 6
    scores = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(3)) * spread
    scores -= scores.amax(-1, keepdim=True)
    scores[1, 1::2] = -torch.inf
    keys = torch.tensor([row_key(2**63 + row, 17 * row) for row in range(rows)])
    expected = Kernels.draw(None, scores, keys)  # type: ignore[arg-type]
    assert draw(scores, keys).tolist() == expected.tolist()


def test_a_row_without_any_token_left_gives_one_that_exists() -> None:
    assert draw(torch.full((1, 10), -torch.inf), torch.tensor([row_key(1, 1)])).tolist() == [0]

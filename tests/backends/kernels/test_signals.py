"""Signals in one pass equal those of plain torch in double precision, whatever the logits are."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.kernels import signals
from backends.kernels.cpu import Cpu
from backends.kernels.reference import Kernels

KINDS = [Cpu, Kernels]


def measured(kind: type[Kernels], logits: torch.Tensor, rows: list[int], tokens: list[int]) -> torch.Tensor:
    """Neither kind looks at a cache for it."""
    return kind.signals(object.__new__(kind), logits, torch.tensor(rows), torch.tensor(tokens))


def right(logits: torch.Tensor, rows: list[int], tokens: list[int]) -> torch.Tensor:
    found = []
    for row, token in zip(rows, tokens, strict=True):
        logs = logits[row].double().log_softmax(-1)
        best = sorted(logits[row].double().tolist())[-2:]
        found.append([float(logs[token]), best[1] - best[0], float(-(logs.exp() * logs).sum())])
    return torch.tensor(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [2, 100, signals.BLOCK, signals.BLOCK + 1, 3 * signals.BLOCK + 77])
@pytest.mark.parametrize("spread", [0.01, 3.0, 40.0])
def test_any_size_and_spread(kind: type[Kernels], dtype: torch.dtype, width: int, spread: float) -> None:
    noise = torch.Generator().manual_seed(width)
    logits = (torch.randn(5, width, generator=noise) * spread).to(dtype)
    rows = [4, 0, 2]
    tokens = torch.randint(0, width, (3,), generator=noise).tolist()
    torch.testing.assert_close(
        measured(kind, logits, rows, tokens), right(logits, rows, tokens), atol=5e-4, rtol=1e-4
    )


@given(data=st.data())
@settings(max_examples=60)
def test_wherever_the_largest_two_are(data: st.DataObject) -> None:
    """In one block or two, in any order, equal or not."""
    width = 2 * signals.BLOCK + 9
    first, second = data.draw(st.lists(st.integers(0, width - 1), min_size=2, max_size=2, unique=True))
    gap = data.draw(st.sampled_from([0.0, 0.5, 7.0]))
    logits = torch.linspace(-3, -1, width)[None].clone()
    logits[0, first], logits[0, second] = 5.0 + gap, 5.0
    _, margin, _ = measured(Cpu, logits, [0], [second])[0].tolist()
    assert math.isclose(margin, gap, abs_tol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_asks(kind: type[Kernels]) -> None:
    empty = torch.tensor([], dtype=torch.int64)
    assert kind.signals(object.__new__(kind), torch.zeros(2, 8), empty, empty).shape == (0, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [2, signals.BLOCK, signals.BLOCK + 1, 3 * signals.BLOCK + 77])
def test_the_likeliest_token(kind: type[Kernels], dtype: torch.dtype, width: int) -> None:
    logits = torch.randint(-40, 30, (6, width)).to(dtype)
    places = [0, 1, width // 2, width - 1, width - 2]
    for row, place in enumerate(places):
        logits[row, place] = 50
    logits[5] = -torch.inf  # a grammar that leaves nothing over
    logits[5, width - 1] = -1e30
    found = kind.argmax(object.__new__(kind), logits)
    assert found.tolist() == [*places, width - 1]


def test_the_first_of_two_that_are_equally_likely() -> None:
    """Where one answer is to come from any batch, it cannot be one or the other."""
    for first, second in ((0, 1), (5, signals.BLOCK + 5), (signals.BLOCK, signals.BLOCK + 1)):
        logits = torch.zeros(1, 2 * signals.BLOCK)
        logits[0, first] = logits[0, second] = 2.5
        assert Cpu.argmax(object.__new__(Cpu), logits).tolist() == [first]

"""One call for many loops gives what each gives in a call of its own, to the last bit."""

from collections.abc import Callable

import pytest
import torch

from backends.kernels.cpu import Cpu
from backends.kernels.layout import KVCache
from backends.kernels.reference import Kernels, Linear
from backends.layers.int4 import Int4Linear
from backends.layers.int8 import Int8Linear
from backends.layers.linear import linear
from backends.quantization.int4 import rounded

WIDTH, MLP, HEAD = 96, 160, 16

Make = Callable[[int, int], Linear]


def eight(channels: int, columns: int) -> Linear:
    return Int8Linear(torch.randn(channels, columns), torch.randn(channels))


def four(channels: int, columns: int) -> Linear:
    return Int4Linear(rounded(torch.randn(channels, columns)), torch.randn(channels))


def whole(channels: int, columns: int) -> Linear:
    return linear(torch.randn(channels, columns))


class Apart(Cpu):
    """Each loop in a call of its own."""

    project, feed_forward = Kernels.project, Kernels.feed_forward


def kernels(kind: type[Cpu]) -> Cpu:
    rope = torch.randn(32, HEAD // 2)
    return kind(KVCache(1, 2, 16, 1, HEAD, dtype=torch.float32), rope, rope, 1)


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 6, 40])
@pytest.mark.parametrize(
    ("first", "second"), [(eight, eight), (four, four), (eight, four), (whole, eight), (eight, whole)]
)
def test_together_is_as_apart(
    first: Make, second: Make, rows: int, dtype: torch.dtype, activation: str
) -> None:
    if dtype == torch.bfloat16 and whole in (first, second):
        pytest.skip("whole weights have the type of the model")
    gate_up, down = first(2 * MLP, WIDTH), second(WIDTH, MLP)
    update, weight = torch.randn(rows, WIDTH).to(dtype), torch.randn(WIDTH)
    before = torch.randn(rows, WIDTH)
    results = []
    for kind in (Cpu, Apart):
        ours, residual = kernels(kind), before.clone()
        projected = ours.project(residual, update, weight, 1e-5, gate_up)
        results.append(
            [
                projected,
                ours.feed_forward(residual, update, weight, 1e-5, gate_up, activation, down),
                residual,
            ]
        )
    for together, apart in zip(*results, strict=True):
        assert together.dtype == apart.dtype and torch.equal(together, apart)


def test_a_bad_row_stays_alone() -> None:
    ours, gate_up, down = kernels(Cpu), eight(2 * MLP, WIDTH), eight(WIDTH, MLP)
    update = torch.randn(4, WIDTH)
    update[2, 3] = torch.nan
    out = ours.feed_forward(torch.zeros(4, WIDTH), update, torch.ones(WIDTH), 1e-5, gate_up, "silu", down)
    assert out.isnan().any(1).tolist() == [False, False, True, False]

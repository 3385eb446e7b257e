"""The integers are exact, a row knows nothing of its neighbours, and the weights count as they are kept."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from backends.kernels import int8
from backends.layers.int4 import Int4Linear
from backends.quantization.int4 import FourBits, rounded

pytestmark = pytest.mark.skipif(not int8.cpu_has("avx2"), reason="this CPU has no avx2")

SHAPES = [(576, 192), (32, 1), (64, 65), (1536, 130)]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def weights(channels: int, columns: int, *, halves: bool = True) -> FourBits:
    integers = torch.randint(0, 16, (channels, columns), dtype=torch.uint8)
    tables = torch.randn(2, channels, columns // 32)
    scales, minima = tables.half().float() if halves else tables
    return FourBits(integers, scales.contiguous(), minima.contiguous())


def quantized(x: torch.Tensor) -> torch.Tensor:
    """What the activations stand for once they are int8, float64."""
    groups = x.float().view(len(x), -1, 32)
    scales = groups.abs().amax(2, keepdim=True) / 127
    return ((groups / scales).round() * scales).double().view(x.shape)


@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize(("columns", "channels"), SHAPES)
@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_a_product_is_that_of_the_quantised_activations(
    columns: int, channels: int, rows: int, halves: bool
) -> None:
    weight, x, bias = (
        weights(channels, columns, halves=halves),
        torch.randn(rows, columns),
        torch.randn(channels),
    )
    exact = quantized(x) @ weight.dequantized().double().T + bias
    ours = Int4Linear(weight, bias)(x).double()
    assert (ours - exact).norm() / exact.norm() < 1e-3  # a rounding may fall on the other side


@pytest.mark.parametrize("integer", [0, 15])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_extremes_do_not_overflow(integer: int, sign: float) -> None:
    """Activations that are integers at their bounds: float32 holds everything exactly."""
    one = torch.ones(9, 4)
    weight = FourBits(torch.full((9, 128), integer, dtype=torch.uint8), one, 0 * one)
    out = Int4Linear(weight)(torch.full((5, 128), 127 * sign))
    assert torch.equal(out, torch.full((5, 9), 128 * 127 * sign * integer))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("columns", "channels"), SHAPES)
def test_a_row_is_the_same_alone_and_among_others(columns: int, channels: int, dtype: torch.dtype) -> None:
    """Loud neighbours included."""
    layer = Int4Linear(weights(channels, columns), torch.randn(channels))
    x = (torch.randn(40, columns) * 10.0 ** torch.randint(-3, 4, (40, 1))).to(dtype)
    many = layer(x)
    for rows in (1, 3, 4, 8, 33):
        for start in range(0, len(x) - rows + 1, rows):
            part = slice(start, start + rows)
            assert torch.equal(layer(x[part]), many[part])


def test_threads_change_nothing(threads: None) -> None:
    layer, x = Int4Linear(weights(300, 576)), torch.randn(7, 576)
    torch.set_num_threads(1)
    one = layer(x)
    torch.set_num_threads(2)
    assert torch.equal(layer(x), one)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("rows", [4, 5])
def test_what_is_no_number_stays_in_its_row(bad: float, rows: int) -> None:
    layer, x = Int4Linear(weights(70, 64)), torch.randn(rows, 64)
    right = layer(x)
    x[2, 5] = bad
    wrong = layer(x)
    assert wrong[2].isnan().all()
    others = torch.arange(rows) != 2
    assert torch.equal(wrong[others], right[others])


@pytest.mark.parametrize("value", [0.0, 1e-38, 1e-45])
def test_next_to_nothing_gives_the_bias(value: float) -> None:
    bias = torch.randn(9)
    assert torch.equal(Int4Linear(weights(9, 64), bias)(torch.full((1, 64), value))[0], bias)


def test_close_to_whole_weights_even_beside_a_loud_column() -> None:
    """A loud column costs its own group some precision, no other."""
    weight, x = torch.randn(200, 576), torch.randn(16, 576)
    x[:, 17] *= 100
    weight[:, 17] /= 100
    kept = rounded(weight)
    exact = x.double() @ kept.dequantized().double().T
    error = (Int4Linear(kept)(x).double() - exact).norm() / exact.norm()
    assert error < 0.05


def test_inputs_come_in_the_order_of_the_columns() -> None:
    weight, order, x = weights(65, 96), torch.randperm(96), torch.randn(5, 96)
    ordered = Int4Linear(replace(weight, order=order))(x)
    assert torch.equal(ordered, Int4Linear(weight)(x[:, order]))

"""The integers are exact, a row knows nothing of its neighbours, and quality is that of the whole weights."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from backends.kernels import int8
from backends.layers import int8 as layers
from backends.layers import linear
from backends.layers.int8 import (
    Avx2Product,
    Int8Linear,
    PlainProduct,
    Product,
    VnniProduct,
    pack,
)
from backends.layers.unread import Unread

MANY = 140  # rows: more than an item of work has
SHAPES = [(576, 960), (70, 130), (33, 1), (4, 64), (1, 7), (1536, 65)]
PRODUCTS = [
    pytest.param(
        product, marks=pytest.mark.skipif(not int8.cpu_has(feature), reason=f"this CPU has no {feature}")
    )
    for product, feature in ((VnniProduct, "avx512vnni"), (Avx2Product, "avx2"))
] + [pytest.param(PlainProduct)]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def integers(*shape: int, low: int = -128, high: int = 128) -> torch.Tensor:
    return torch.randint(low, high, shape, dtype=torch.int8)


def sums_of(product: type[Product], x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x · weightᵀ, as float64; exact where float32 can hold it."""
    channels, ours = len(weight), product(weight)
    wide = np.full((len(x), ours.width), ours.zero)
    wide[:, : x.shape[1]] = x.to(torch.int16).numpy() + np.int16(ours.zero)
    out = np.empty((len(x), channels), np.float32)
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    ours(wide, np.ones(len(x), np.float32), ones, zeros, out)
    return torch.from_numpy(out).double()


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(("columns", "channels"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 31, 32, 33, 40, 131])
def test_a_product_is_the_integer_product(
    product: type[Product], columns: int, channels: int, rows: int
) -> None:
    x, weight = integers(rows, columns), integers(channels, columns)
    exact = x.long() @ weight.long().T
    torch.testing.assert_close(sums_of(product, x, weight), exact.double(), rtol=0, atol=0)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("rows", [5, MANY])
@pytest.mark.parametrize("x", [-128, 127])
@pytest.mark.parametrize("weight", [-128, 127])
def test_extremes_do_not_saturate(product: type[Product], rows: int, x: int, weight: int) -> None:
    """Sixteen-bit sums, as older instructions have them, would; 1,024 columns keep float32 exact."""
    left, right = torch.full((rows, 1024), x).to(torch.int8), torch.full((66, 1024), weight).to(torch.int8)
    exact = torch.full((rows, 66), 1024 * x * weight).double()
    torch.testing.assert_close(sums_of(product, left, right), exact, rtol=0, atol=0)


@pytest.mark.parametrize(("wide", "deep"), [(64, 4), (16, 2)])
@pytest.mark.parametrize(("columns", "channels"), SHAPES)
def test_packing_loses_nothing(columns: int, channels: int, wide: int, deep: int) -> None:
    weight = integers(channels, columns)
    rows, runs, _, _ = (packed := pack(weight, wide, deep)).shape
    back = packed.transpose(1, 2).reshape(rows * wide, runs * deep)
    assert torch.equal(back[:channels, :columns], weight)
    assert not back[channels:].any()
    assert not back[:, columns:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("columns", "channels"), SHAPES)
def test_a_row_is_the_same_alone_and_among_others(columns: int, channels: int, dtype: torch.dtype) -> None:
    """Loud neighbours included, within an item of work and beyond."""
    layer = Int8Linear(torch.randn(channels, columns), torch.randn(channels))
    x = torch.randn(MANY, columns) * 10.0 ** torch.randint(-3, 4, (MANY, 1))
    many = layer(x.to(dtype))
    for rows in (1, 3, 8, 32, 129):
        for start in range(0, len(x) - rows + 1, rows):
            part = slice(start, start + rows)
            assert torch.equal(layer(x[part].to(dtype)), many[part])


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("rows", [1, 5, MANY])
def test_the_result_is_the_same_whatever_the_cpu_has(
    product: type[Product], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, bias, x = torch.randn(130, 1100), torch.randn(130), torch.randn(rows, 1100)
    fastest = Int8Linear(weight, bias)(x)
    monkeypatch.setattr(layers, "fastest", lambda: product)
    assert torch.equal(Int8Linear(weight, bias)(x), fastest)


@pytest.mark.parametrize(
    ("features", "product"),
    [({"avx512vnni", "avx2"}, VnniProduct), ({"avx2"}, Avx2Product), (set(), PlainProduct)],
)
def test_the_best_that_the_cpu_has_is_taken(
    features: set[str], product: type[Product], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "cpu_has", features.__contains__)
    assert layers.fastest() is product


@pytest.mark.parametrize("rows", [1, 7, MANY])
def test_threads_change_nothing(rows: int, threads: None) -> None:
    layer, x = Int8Linear(torch.randn(300, 576)), torch.randn(rows, 576)
    torch.set_num_threads(1)
    one = layer(x)
    torch.set_num_threads(2)
    assert torch.equal(layer(x), one)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("rows", [4, MANY])
def test_what_is_no_number_stays_in_its_row(bad: float, rows: int) -> None:
    layer, x = Int8Linear(torch.randn(70, 64)), torch.randn(rows, 64)
    right = layer(x)
    x[2, 5] = bad
    wrong = layer(x)
    assert wrong[2].isnan().all()
    others = torch.arange(rows) != 2
    assert torch.equal(wrong[others], right[others])


@pytest.mark.parametrize("value", [0.0, 1e-38, 1e-45])
def test_next_to_nothing_gives_the_bias(value: float) -> None:
    bias = torch.randn(9)
    assert torch.equal(Int8Linear(torch.randn(9, 64), bias)(torch.full((1, 64), value))[0], bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_close_to_the_whole_weights_even_beside_a_loud_column(dtype: torch.dtype) -> None:
    """Without the rotation the column costs all others their precision: an error above 0.2 instead of 0.06."""
    weight, x = torch.randn(200, 576), torch.randn(16, 576)
    x[:, 17] *= 100
    weight[:, 17] /= 100
    exact = x.to(dtype).double() @ weight.double().T
    error = (Int8Linear(weight)(x.to(dtype)).double() - exact).norm() / exact.norm()
    assert error < 0.1


def test_weights_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        Int8Linear(torch.tensor([[1.0, float("nan")]]))
    with pytest.raises(ValueError, match="columns"):
        Int8Linear(torch.empty(1, int8.MAX_COLUMNS + 1))


def test_the_format_is_chosen_by_name() -> None:
    assert isinstance(linear.linear(torch.ones(2, 2), format="int8"), Int8Linear)
    assert not isinstance(linear.linear(torch.ones(2, 2)), Int8Linear)


def test_weights_are_rounded_to_the_nearest_multiple_of_their_scale() -> None:
    """As torch says it, bit by bit; those that are read in pieces, too."""
    weight = torch.randn(600, 2304) * torch.logspace(-40, 3, 600)[:, None]
    rotated = weight.clone()
    whole, scales = layers._quantized(weight)
    int8.quantize_weights(rotated.numpy(), np.empty((600, 2304), np.int8), np.empty(600, np.float32))
    expected = rotated.abs().amax(1).clamp(min=1e-30) / 127
    assert torch.equal(scales, expected)
    assert torch.equal(whole, (rotated / expected[:, None]).round().to(torch.int8))
    read: list[range] = []

    def some(rows: range) -> torch.Tensor:
        read.append(rows)
        return weight[rows.start : rows.stop]

    unread = Unread((600, 2304), some)
    assert all(torch.equal(*pair) for pair in zip(layers._quantized(unread), (whole, scales), strict=True))
    assert len(read) > 1 and max(map(len, read)) < 600

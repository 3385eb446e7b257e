"""Linear layers of quantised weights for GPUs, with the plain products that the kernels are held to."""

import pytest
import torch

from backends.kernels.select import Place
from backends.layers.linear import Format, linear
from backends.layers.packed import PackedLinear, RoundedLinear
from backends.quantization import packed
from backends.quantization.grouped import Grouped
from backends.quantization.int4 import rounded as four_bits
from backends.quantization.packing import fp8
from backends.quantization.stacks import Quantized

GPU = Place(torch.device("cpu"), (9, 0))  # one whose kernels are plain
ELSEWHERE = Place(torch.device("meta"), (9, 0))  # and where nothing is stored
CHANNELS, COLUMNS = 24, 128


def scattered() -> Grouped:
    """With act-order."""
    integers = torch.randint(0, 16, (CHANNELS, COLUMNS)).to(torch.uint8)
    tables = torch.rand(CHANNELS, 4).half(), torch.randint(0, 16, (CHANNELS, 4)).to(torch.uint8)
    return Grouped(4, integers, *tables, torch.arange(COLUMNS)[torch.randperm(COLUMNS)] // 32)


def small_floats() -> fp8.Float8:
    return fp8.rounded(torch.randn(CHANNELS, COLUMNS), (1, COLUMNS))


@pytest.mark.parametrize(
    "weight",
    [scattered(), small_floats(), four_bits(torch.randn(CHANNELS, COLUMNS))],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("bias", [torch.randn(CHANNELS), None], ids=["bias", "no bias"])
def test_it_multiplies_by_what_the_file_says(weight: Quantized, bias: torch.Tensor | None) -> None:
    x = torch.randn(5, COLUMNS)
    layer = linear(weight, bias, place=GPU)
    expected = torch.nn.functional.linear(x, weight.dequantized(), bias)
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-4)


def test_float8_is_multiplied_by_float8_where_that_can_be() -> None:
    x, weight = torch.randn(5, COLUMNS), small_floats()
    whole, rounds = linear(weight, format="fp8a16", place=GPU), linear(weight, format="fp8", place=GPU)
    assert isinstance(rounds, RoundedLinear) and not isinstance(whole, RoundedLinear)
    exact = whole(x)
    error = (rounds(x) - exact).norm() / exact.norm()
    assert 0 < error < 0.04, "inputs have four bits less than halves"


@pytest.mark.parametrize(
    ("format", "dtype", "bound"),
    [
        ("int8", torch.int8, 0.01),
        ("w8a8", torch.int8, 0.015),
        ("fp8a16", packed.FLOAT8, 0.04),
        ("fp8", packed.FLOAT8, 0.05),
    ],
)
def test_whole_weights_are_rounded_to_what_was_asked_for(
    format: Format, dtype: torch.dtype, bound: float
) -> None:
    x, weight = torch.randn(5, COLUMNS), torch.randn(CHANNELS, COLUMNS)
    layer = linear(weight, format=format, place=GPU)
    assert isinstance(layer, PackedLinear) and layer.weight.values.dtype == dtype
    assert isinstance(layer, RoundedLinear) is (format in ("w8a8", "fp8"))
    exact = x @ weight.T
    assert 0 < (layer(x) - exact).norm() / exact.norm() < bound


def test_zeros_beside_integers_leave_inputs_whole() -> None:
    integers = torch.randint(0, 256, (CHANNELS, COLUMNS)).to(torch.uint8)
    weight = Grouped(
        8, integers, torch.rand(CHANNELS, 1).half(), torch.full((CHANNELS, 1), 3).to(torch.uint8)
    )
    with pytest.raises(ValueError, match="weights of eight bits without zeros; int8 keeps inputs whole"):
        linear(weight, format="w8a8", place=GPU)


def test_rounded_inputs_do_not_look_at_their_neighbours() -> None:
    weight = packed.rounded(torch.randn(CHANNELS, COLUMNS))
    layer = RoundedLinear(weight, None, GPU)
    x = torch.randn(3, COLUMNS)
    loud = torch.cat([x, 1e4 * torch.randn(2, COLUMNS)])
    assert torch.equal(layer(loud)[:3], layer(x))
    torch.testing.assert_close(layer(x), x @ weight.dequantized().T, rtol=0.02, atol=0.3)


def test_quantised_weights_stay_packed_on_a_gpu() -> None:
    four = linear(scattered(), torch.zeros(CHANNELS), place=ELSEWHERE)
    assert isinstance(four, PackedLinear)
    assert four.weight.values.dtype == torch.uint8 and four.weight.values.nbytes == CHANNELS * COLUMNS // 2
    assert four.weight.values.is_meta and four.bias is not None and four.bias.is_meta


def test_whole_weights_stay_whole_on_a_gpu() -> None:
    layer = linear(torch.randn(CHANNELS, COLUMNS).bfloat16(), place=ELSEWHERE)
    assert layer(torch.randn(2, COLUMNS, device="meta").bfloat16()).shape == (2, CHANNELS)


def test_what_cpus_have_no_kernel_for_is_refused() -> None:
    with pytest.raises(ValueError, match="weights kept as Grouped are for GPUs"):
        linear(scattered())
    with pytest.raises(ValueError, match="fp8 needs a GPU"):
        linear(torch.ones(2, 2), format="fp8")

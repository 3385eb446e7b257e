"""Linear layers of quantised weights for GPUs, with the plain products that the kernels are held to."""

from dataclasses import replace

import pytest
import torch

from backends.kernels.products import PLAIN
from backends.layers import linear as choice
from backends.layers.linear import linear
from backends.layers.packed import PackedLinear, Quantized, RoundedLinear, quantized_linear
from backends.quantization import packed
from backends.quantization.grouped import Grouped
from backends.quantization.int4 import rounded as four_bits
from backends.quantization.packing import fp8

CPU, META = torch.device("cpu"), torch.device("meta")
CHANNELS, COLUMNS = 24, 128
WITHOUT_FLOAT8 = replace(PLAIN, multiplies_float8=False)


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
    layer = quantized_linear(weight, bias, WITHOUT_FLOAT8, CPU)
    expected = torch.nn.functional.linear(x, weight.dequantized(), bias)
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-4)


def test_float8_is_multiplied_by_float8_where_that_can_be() -> None:
    x, weight = torch.randn(5, COLUMNS), small_floats()
    whole, rounds = (quantized_linear(weight, None, each, CPU) for each in (WITHOUT_FLOAT8, PLAIN))
    assert isinstance(whole, PackedLinear) and isinstance(rounds, RoundedLinear)
    exact = whole(x)
    error = (rounds(x) - exact).norm() / exact.norm()
    assert 0 < error < 0.04, "inputs have four bits less than halves"


def test_rounded_inputs_do_not_look_at_their_neighbours() -> None:
    weight = packed.rounded(torch.randn(CHANNELS, COLUMNS))
    layer = RoundedLinear(weight, None, PLAIN)
    x = torch.randn(3, COLUMNS)
    loud = torch.cat([x, 1e4 * torch.randn(2, COLUMNS)])
    assert torch.equal(layer(loud)[:3], layer(x))
    torch.testing.assert_close(layer(x), x @ weight.dequantized().T, rtol=0.02, atol=0.3)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device whose kernels are plain, and where nothing is stored."""
    monkeypatch.setattr(choice, "products_for", lambda device: WITHOUT_FLOAT8)
    return META


def test_quantised_weights_stay_packed_on_a_gpu(gpu: torch.device) -> None:
    four = linear(scattered(), torch.zeros(CHANNELS), device=gpu)
    assert isinstance(four, PackedLinear)
    assert four.weight.values.dtype == torch.uint8 and four.weight.values.nbytes == CHANNELS * COLUMNS // 2
    assert four.weight.values.is_meta and four.bias is not None and four.bias.is_meta
    eight = linear(torch.randn(CHANNELS, COLUMNS), int8=True, device=gpu)
    assert isinstance(eight, PackedLinear) and eight.weight.values.dtype == torch.int8


def test_whole_weights_stay_whole_on_a_gpu(gpu: torch.device) -> None:
    layer = linear(torch.randn(CHANNELS, COLUMNS).bfloat16(), device=gpu)
    assert layer(torch.randn(2, COLUMNS, device=gpu).bfloat16()).shape == (2, CHANNELS)


def test_what_cpus_have_no_kernel_for_is_refused() -> None:
    with pytest.raises(ValueError, match="weights kept as Grouped are for GPUs"):
        linear(scattered())

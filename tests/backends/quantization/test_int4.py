"""What GGUF files hold in four bits is kept bit for bit; what is whole is rounded to the nearest step."""

import gguf
import numpy as np
import pytest
import torch

from backends.quantization.gguf import FOUR_BITS, dequantize
from backends.quantization.grouped import Grouped
from backends.quantization.int4 import exact, fits, kept, one_order, rounded, stacked, whole


def raw(type: str, rows: int, columns: int) -> torch.Tensor:
    """Blocks of random weights, as the gguf package writes them, or of random bytes where it does not write them."""
    kind = gguf.GGMLQuantizationType[type]
    weights, bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(0).integers(0, 256, (rows, columns // weights * bytes), np.uint8)
    halves = blocks.reshape(-1, bytes)
    for place in (0,) if type == "Q4_0" else (0, 2):  # scales and minima: halves that are numbers
        halves[:, place : place + 2] = np.frombuffer(np.float16(0.37 + place).tobytes(), np.uint8)
    return torch.from_numpy(blocks)


@pytest.mark.parametrize("type", FOUR_BITS)
def test_formats_of_four_bits_lose_nothing(type: str) -> None:
    blocks = raw(type, 6, 512)
    four = kept(blocks, type)
    assert four.integers.max() <= 15 and four.scales.shape == four.minima.shape == (6, 16)
    assert torch.equal(four.dequantized(), dequantize(blocks, type, torch.float32))


def test_other_formats_are_not_kept() -> None:
    with pytest.raises(ValueError, match="Q8_0 is not a format of four bits; those are Q4_0, Q4_1, Q4_K"):
        kept(torch.zeros(1, 34, dtype=torch.uint8), "Q8_0")


def test_whole_weights_are_off_by_half_a_step_at_most() -> None:
    weight = torch.randn(20, 96)
    four = rounded(weight)
    step = four.scales.repeat_interleave(32, dim=1)
    assert ((four.dequantized() - weight).abs() <= 0.52 * step + 2e-3).all()  # scale and minimum are halves


@pytest.mark.parametrize("value", [0.0, -3.5, 1e-9])
def test_groups_of_one_value_are_that_value(value: float) -> None:
    torch.testing.assert_close(
        rounded(torch.full((2, 64), value)).dequantized(), torch.full((2, 64), value), rtol=0, atol=1e-7
    )


def test_weights_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="int4: a weight is not finite"):
        rounded(torch.full((1, 32), float("nan")))


def test_rows_are_stacked() -> None:
    first, second = rounded(torch.randn(3, 64)), rounded(torch.randn(2, 64))
    both = stacked([first, second])
    assert torch.equal(both.dequantized()[3:], second.dequantized())
    assert torch.equal(both.dequantized()[:3], first.dequantized())


def test_any_format_is_rounded_from_its_weights() -> None:
    weight = torch.randn(2, 32)
    assert torch.equal(whole(weight.view(torch.uint8), "F32").dequantized(), rounded(weight).dequantized())


def grouped(
    columns: int = 192, groups: int = 3, column_groups: torch.Tensor | None = None, bits: int = 4
) -> Grouped:
    integers = torch.randint(0, 1 << bits, (10, columns), dtype=torch.uint8)
    zeros = torch.randint(0, 1 << bits, (10, groups), dtype=torch.uint8)
    return Grouped(bits, integers, torch.rand(10, groups).half(), zeros, column_groups)


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize(("columns", "groups"), [(192, 6), (192, 3), (192, 2), (192, 1), (128, 1)])
def test_larger_groups_are_held_exactly(columns: int, groups: int, bits: int) -> None:
    weight = grouped(columns, groups, bits=bits)
    four = exact(weight)
    assert four.scales.shape == (10, columns // 32)
    assert torch.equal(four.dequantized(), weight.dequantized())


def test_columns_are_sorted_by_their_groups() -> None:
    weight = grouped(column_groups=torch.randperm(192) // 64)
    four = exact(weight)
    assert four.order is not None
    assert torch.equal(four.dequantized(), weight.dequantized())


@pytest.mark.parametrize(
    "weight",
    [
        grouped(groups=4),  # of 48
        grouped(groups=12),  # of 16
        grouped(bits=8),
        grouped(column_groups=torch.arange(192) // 65),
    ],
)
def test_what_does_not_fit_is_refused(weight: Grouped) -> None:
    assert not fits(weight)
    with pytest.raises(ValueError, match="int4: only groups of one size"):
        exact(weight)


def test_only_columns_in_one_order_are_stacked() -> None:
    order = torch.randperm(192)
    plain, ordered, others = (
        exact(grouped(column_groups=groups)) for groups in (None, order // 64, order.flip(0) // 64)
    )
    both = stacked([ordered, ordered])
    assert torch.equal(both.dequantized()[10:], ordered.dequantized())
    assert one_order([plain, plain]) and one_order([ordered, ordered])
    for parts in ([plain, ordered], [ordered, plain], [ordered, others]):
        assert not one_order(parts)
        with pytest.raises(ValueError, match="in different orders cannot be stacked"):
            stacked(parts)

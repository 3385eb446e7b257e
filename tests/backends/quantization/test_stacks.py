"""Quantised weights below one another are what each of them is."""

import pytest
import torch

from backends.quantization.grouped import Grouped
from backends.quantization.int4 import rounded
from backends.quantization.packing import fp8
from backends.quantization.stacks import Quantized, stackable, stacked

COLUMNS = 192


def grouped(rows: int, groups: int = 2) -> Grouped:
    integers = torch.randint(0, 256, (rows, COLUMNS)).to(torch.uint8)
    zeros = torch.randint(0, 256, (rows, groups)).to(torch.uint8)
    return Grouped(8, integers, torch.rand(rows, groups), zeros)


def floats(rows: int, block: tuple[int, int]) -> fp8.Float8:
    return fp8.rounded(torch.randn(rows, COLUMNS), block)


@pytest.mark.parametrize(
    "parts",
    [
        [grouped(3), grouped(5)],
        [rounded(torch.randn(3, COLUMNS)), rounded(torch.randn(5, COLUMNS))],
        [floats(3, (3, COLUMNS)), floats(5, (5, COLUMNS))],
        [floats(130, (128, 128)), floats(40, (128, 128)), floats(2, (1, 128))],
    ],
    ids=["integers", "four bits", "floats with one scale each", "floats in blocks"],
)
def test_rows_below_rows(parts: list[Quantized]) -> None:
    assert stackable(parts)
    expected = torch.cat([part.dequantized() for part in parts])
    assert torch.equal(stacked(parts).dequantized(), expected)


@pytest.mark.parametrize(
    "parts",
    [
        [grouped(3), grouped(3, groups=4)],
        [floats(3, (1, COLUMNS)), floats(3, (128, 128))],
        [grouped(3), floats(3, (1, COLUMNS))],
    ],
    ids=["groups", "blocks", "kinds"],
)
def test_what_differs_in_more_than_rows_is_refused(parts: list[Quantized]) -> None:
    assert not stackable(parts)
    with pytest.raises(ValueError, match="cannot be stacked"):
        stacked(parts)

"""What integers, scales and zeros mean together, and which do not fit one another."""

import pytest
import torch

from backends.quantization.grouped import Grouped, middle, signed_to_codes, stacked


def grouped(column_groups: list[int] | None = None, rows: int = 2) -> Grouped:
    integers = torch.arange(4 * rows, dtype=torch.uint8).view(rows, 4)
    scales, zeros = torch.tensor([[0.5, 2.0]] * rows), torch.tensor([[1, 3]] * rows, dtype=torch.uint8)
    groups = None if column_groups is None else torch.tensor(column_groups)
    return Grouped(4, integers, scales, zeros, groups)


def test_neighbours_share_scale_and_zero() -> None:
    assert grouped().dequantized().tolist() == [[-0.5, 0, -2, 0], [1.5, 2, 6, 8]]


def test_columns_may_say_their_group() -> None:
    assert grouped([1, 0, 0, 1]).dequantized().tolist() == [[-6, 0, 0.5, 0], [2, 2, 2.5, 8]]


def test_sixteen_bits_of_scale_lose_nothing() -> None:
    integers = torch.arange(256, dtype=torch.uint8)[None]
    for dtype in (torch.float16, torch.bfloat16):
        scale = torch.tensor([[1 / 3]]).to(dtype)
        weight = Grouped(8, integers, scale, torch.tensor([[77]], dtype=torch.uint8)).dequantized()
        assert torch.equal(weight.double(), (integers.double() - 77) * scale.double())


def test_rows_are_cut_and_stacked() -> None:
    whole = grouped(rows=5)
    assert torch.equal(stacked([whole.rows(0, 2), whole.rows(2, 5)]).dequantized(), whole.dequantized())


def test_parts_that_differ_are_not_stacked() -> None:
    with pytest.raises(ValueError, match="grouped differently"):
        stacked([grouped([1, 0, 0, 1]), grouped()])
    with pytest.raises(ValueError, match="grouped differently"):
        stacked([grouped([1, 0, 0, 1]), grouped([0, 1, 0, 1])])
    one = Grouped(4, grouped().integers, torch.ones(2, 1), middle(2, 1, 4))
    with pytest.raises(ValueError, match="different bits or groups"):
        stacked([grouped(), one])


def test_signed_integers_keep_their_distances() -> None:
    signed = torch.tensor([-8, -1, 0, 7], dtype=torch.int8)
    assert signed_to_codes(signed, 4).tolist() == [0, 7, 8, 15]
    assert signed_to_codes(torch.tensor([-128, 127], dtype=torch.int8), 8).tolist() == [0, 255]
    assert middle(1, 2, 8).tolist() == [[128, 128]]


@pytest.mark.parametrize(
    ("scales", "zeros", "groups", "message"),
    [
        ((3, 2), (3, 2), None, "2 rows do not fit scales"),
        ((2, 2), (2, 1), None, "2 rows do not fit"),
        ((2, 3), (2, 3), None, "4 columns are not 3 groups of one size"),
        ((2, 0), (2, 0), None, "4 columns are not 0 groups"),
        ((2, 2), (2, 2), [0, 0, 1], "groups of 3 columns are given, there are 4"),
        ((2, 2), (2, 2), [0, 0, 1, 2], "not among the 2"),
        ((2, 2), (2, 2), [0, 0, 1, -1], "not among the 2"),
    ],
)
def test_what_does_not_fit_is_refused(
    scales: tuple[int, int], zeros: tuple[int, int], groups: list[int] | None, message: str
) -> None:
    of_columns = None if groups is None else torch.tensor(groups)
    with pytest.raises(ValueError, match=message):
        Grouped(4, grouped().integers, torch.ones(scales), torch.zeros(zeros, dtype=torch.uint8), of_columns)

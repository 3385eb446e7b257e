import pytest
import torch

from backends.instructions import cpu_has_bfloat16
from backends.layers.linear import _Packed, _Plain, linear

SHAPES = [(576, 960), (33, 7), (1, 1)]


@pytest.mark.parametrize(("columns", "rows"), SHAPES)
@pytest.mark.parametrize("tokens", [1, 3, 16, 130])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_float32_is_torch_bit_by_bit(columns: int, rows: int, tokens: int, bias: bool) -> None:
    x, weight, added = torch.randn(tokens, columns), torch.randn(rows, columns), torch.randn(rows)
    ours = linear(weight, added if bias else None)(x)
    theirs = torch.nn.functional.linear(x, weight, added if bias else None)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(("columns", "rows"), SHAPES)
@pytest.mark.parametrize("tokens", [1, 3, 16, 130])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_bfloat16_is_right_to_its_last_places(columns: int, rows: int, tokens: int, bias: bool) -> None:
    x, weight = torch.randn(tokens, columns).bfloat16(), torch.randn(rows, columns).bfloat16() / columns**0.5
    added = torch.randn(rows).bfloat16() if bias else None
    exact = x.double() @ weight.double().T + (0 if added is None else added.double())
    ours = linear(weight, added)(x)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8, atol=2**-8)


def test_the_choice_is_made_by_type_and_machine() -> None:
    assert isinstance(linear(torch.ones(2, 2)), _Plain)
    packed = linear(torch.ones(2, 2, dtype=torch.bfloat16))
    assert isinstance(packed, _Packed) == cpu_has_bfloat16()


def test_a_slice_of_a_larger_weight_can_be_packed() -> None:
    """The head of a padded vocabulary."""
    weight = torch.randn(100, 64).bfloat16()
    x = torch.randn(2, 64).bfloat16()
    torch.testing.assert_close(linear(weight[:90])(x), linear(weight)(x)[:, :90])

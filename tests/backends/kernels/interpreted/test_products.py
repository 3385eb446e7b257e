"""Products with quantised weights equal plain torch, for shapes that fill no tile.

float32 and float16 only: the interpreter multiplies bfloat16's bit patterns (triton-lang/triton#11584).
"""

import pytest
import torch

from backends.kernels import products, triton_products, triton_rounding
from backends.kernels.tiling import tiling
from backends.quantization.grouped import Grouped
from backends.quantization.int4 import rounded as four_bits
from backends.quantization.packed import Packed, from_float8, from_four_bits, from_grouped, rounded
from backends.quantization.packing import fp8

F32, F16 = torch.float32, torch.float16
CHANNELS = 72  # a tile of 64 and a bit


def integers(bits: int, columns: int, group: int, *, zeros: bool) -> Packed:
    noise = torch.Generator().manual_seed(group)
    groups, most = columns // group, 1 << bits
    values = torch.randint(0, most, (CHANNELS, columns), generator=noise).to(torch.uint8)
    drawn = torch.randint(0, most, (CHANNELS, groups), generator=noise).to(torch.uint8)
    scales = torch.rand(CHANNELS, groups, generator=noise) + 0.1
    return from_grouped(
        Grouped(bits, values, scales.half(), drawn if zeros else torch.full_like(drawn, most // 2))
    )


def minima(columns: int) -> Packed:
    return from_four_bits(
        four_bits(torch.randn(CHANNELS, columns, generator=torch.Generator().manual_seed(5)))
    )


def float8(columns: int, block: tuple[int, int]) -> Packed:
    weight = torch.randn(CHANNELS, columns, generator=torch.Generator().manual_seed(columns))
    return from_float8(fp8.rounded(weight, block))


def noise(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(dtype)


WEIGHTS = {
    "int4 in groups of 32 with zeros": lambda: integers(4, 96, 32, zeros=True),
    "int4 in groups of 64": lambda: integers(4, 192, 64, zeros=False),
    "int4 in groups of 128 with zeros": lambda: integers(4, 256, 128, zeros=True),
    "int4 by channel": lambda: integers(4, 160, 160, zeros=True),
    "int4 with minima": lambda: minima(128),
    "int8 by channel": lambda: integers(8, 200, 200, zeros=False),
    "int8 in groups of 64 with zeros": lambda: integers(8, 128, 64, zeros=True),
    "float8 by channel": lambda: float8(144, (1, 144)),
    "float8 in blocks": lambda: float8(200, (32, 128)),
}


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize(("rows", "dtype"), [(3, F32), (17, F16)])
def test_weight_only(name: str, rows: int, dtype: torch.dtype) -> None:
    weight = WEIGHTS[name]()
    x, bias = noise(rows, weight.columns, dtype), noise(1, CHANNELS, dtype)[0] if dtype == F32 else None
    ours, plain = (module.weight_only(x, weight, bias) for module in (triton_products, products))
    tolerance = 1e-6 if dtype == F32 else 1e-3
    torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance * float(plain.abs().amax()))


@pytest.mark.parametrize("columns", [100, 1200])
@pytest.mark.parametrize("rows", [1, 70])
def test_int8_by_int8_is_exact(columns: int, rows: int) -> None:
    """Whole columns and split ones, tiles of 16 rows and of 64; bit by bit."""
    weight = rounded(noise(CHANNELS, columns, F32))
    x, scales = products.quantize_rows(noise(rows, columns, F32), torch.int8)
    bias = noise(1, CHANNELS, F32)[0]
    ours = triton_products.scaled(x, scales, weight, bias, dtype=F32)
    assert torch.equal(ours, products.scaled(x, scales, weight, bias, dtype=F32))


@pytest.mark.parametrize("block", [(1, 200), (32, 128)])
def test_float8_by_float8(block: tuple[int, int]) -> None:
    weight = float8(200, block)
    x, scales = products.quantize_rows(noise(5, 200, F32), torch.float8_e4m3fn)
    ours = triton_products.scaled(x, scales, weight, dtype=F32)
    torch.testing.assert_close(ours, products.scaled(x, scales, weight, dtype=F32), rtol=1e-5, atol=1e-4)


def test_inputs_of_another_type_than_the_weights_are_refused() -> None:
    x, scales = products.quantize_rows(noise(2, 200, F32), torch.int8)
    for weight in (float8(200, (1, 200)), integers(8, 200, 200, zeros=True)):
        with pytest.raises(ValueError, match="want weights of the same type"):
            triton_products.scaled(x, scales, weight, dtype=F32)


def test_a_row_has_the_same_sums_in_every_batch() -> None:
    """Alone, its columns are split among programs; beside 600 others one program does it all, in the same order."""
    weight = Packed(torch.randint(-9, 9, (8, 1100)).to(torch.int8), torch.ones(1, 8), 1100)
    alone, together = tiling(1, 8, 1100, 1100, 4), tiling(70, 8, 1100, 1100, 4)
    assert (alone.splits, alone.span, alone.depth) == (together.splits, together.span, together.depth)
    assert alone.splits > 1
    x = torch.randint(-9, 9, (70, 1100)).float() * 2.0**-3  # such that all sums are exact
    apart = torch.cat([triton_products.weight_only(row[None], weight) for row in x[:2]])
    assert torch.equal(triton_products.weight_only(x, weight)[:2], apart)


@pytest.mark.parametrize("dtype", [F32, F16])
def test_rows_become_int8_bit_by_bit(dtype: torch.dtype) -> None:
    x = noise(4, 1100, dtype)
    x[1] *= 1e3
    x[2] = 0
    x[3, :4] = torch.tensor([0.5, 1.5, -2.5, 127]).to(dtype)  # halves, to even
    ours, plain = (module.quantize_rows(x, torch.int8) for module in (triton_rounding, products))
    assert all(torch.equal(first, second) for first, second in zip(ours, plain, strict=True))


def test_rows_become_float8_bit_by_bit() -> None:
    x = noise(4, 1100, F32)
    x[1] *= 1e3
    x[2] = 0
    x[3] = torch.linspace(-0.1, 0.1, 1100)  # with multiples of the least
    x[3, 0] = 448
    ours, plain = (module.quantize_rows(x, torch.float8_e4m3fn) for module in (triton_rounding, products))
    assert torch.equal(ours[0].view(torch.uint8), plain[0].view(torch.uint8))
    assert torch.equal(ours[1], plain[1])


# What numpy warns of that the kernel does on purpose.
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_spoils_itself_alone(bad: float) -> None:
    x, weight = noise(3, 96, F32), rounded(noise(CHANNELS, 96, F32))
    x[1, 7] = bad
    for rounding, product in ((products, products), (triton_rounding, triton_products)):
        values, scales = rounding.quantize_rows(x, torch.int8)
        out = product.scaled(values, scales, weight, dtype=F32)
        assert out[1].isnan().all() and out[[0, 2]].isfinite().all()


def test_no_rows_give_no_rows() -> None:
    weight = integers(4, 96, 32, zeros=True)
    assert triton_products.weight_only(torch.empty(0, 96), weight).shape == (0, CHANNELS)
    assert triton_rounding.quantize_rows(torch.empty(0, 96), torch.int8)[0].shape == (0, 96)

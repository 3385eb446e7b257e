"""Rounding of a product's inputs to eight bits in Triton, row by row."""

import torch
import triton
import triton.language as tl

from backends.kernels.products import LARGEST
from backends.kernels.triton_codes import to_float8, to_int8
from backends.kernels.triton_types import OPTIONS

WIDTH = 1024  # columns at a time


def quantize_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """As `products.quantize_rows`."""
    rows, columns = x.shape
    values = torch.empty(rows, columns, dtype=dtype, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    whole = dtype == torch.int8
    if rows:
        quantize[(rows,)](
            x, values if whole else values.view(torch.uint8), scales, columns, x.stride(0),
            MOST=LARGEST[dtype], WIDTH=WIDTH, WHOLE=whole, **OPTIONS,
        )  # fmt: skip
    return values, scales


@triton.jit  # type: ignore[untyped-decorator]
def quantize(
    x: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    columns: tl.tensor,
    x_stride: tl.tensor,
    MOST: tl.constexpr,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
) -> None:
    """One program for each row: its largest, and then all of it again by that."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    largest = tl.full([WIDTH], 1e-30, tl.float32)
    poison = tl.zeros([WIDTH], tl.float32)  # NaN where x is NaN or infinite
    for start in range(0, columns, WIDTH):
        at = start + column
        number = tl.load(x + row * x_stride + at, mask=at < columns, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(number))
        poison += number * 0.0
    top = tl.max(largest, 0)
    tl.store(scales + row, tl.div_rn(top, MOST) + tl.sum(poison, 0))
    steps = tl.div_rn(MOST, top)
    for start in range(0, columns, WIDTH):
        at = start + column
        number = tl.load(x + row * x_stride + at, mask=at < columns, other=0.0).to(tl.float32) * steps
        number = tl.where(number == number, number, 0.0)
        tl.store(
            values + row * columns + at, to_int8(number) if WHOLE else to_float8(number), mask=at < columns
        )

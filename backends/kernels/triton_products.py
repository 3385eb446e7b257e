"""Products with quantised weights in Triton: the same names as in `backends.kernels.products`, for GPUs.

One program for a tile of rows and channels, and with few rows for a piece of the columns too. The weights go from
memory to the matrix instruction as they are packed, and become numbers of the input's type on the way: small
integers, less their zero, which every type has exactly. Scales come after the sums, in float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from backends.kernels.tiling import Tiling, tiling
from backends.kernels.triton_codes import from_float8
from backends.kernels.triton_types import OPTIONS
from backends.quantization.packed import FLOAT8, Packed

NAMES = {torch.uint8: "int4", torch.int8: "int8", FLOAT8: "fp8"}  # by the type of the values
FINISHED = 1024  # numbers that one program of `finish` makes


def weight_only(x: torch.Tensor, weight: Packed, bias: torch.Tensor | None = None) -> torch.Tensor:
    """As `products.weight_only`, with sums in float32."""
    return _product(x, None, weight, bias, x.dtype)


def scaled(
    x: torch.Tensor,
    scales: torch.Tensor,
    weight: Packed,
    bias: torch.Tensor | None = None,
    *,
    dtype: torch.dtype,
) -> torch.Tensor:
    """As `products.scaled`; integers are exact, others have sums in float32. float8 needs sm89 and up.

    Raises ValueError for weights of another type than x, and for such as are more than a value times a scale.
    """
    if x.dtype != weight.values.dtype or weight.zeros is not None or weight.minima is not None:
        raise ValueError(f"inputs of {x.dtype} want weights of the same type without zeros and minima")
    return _product(x, scales, weight, bias, dtype)


def _product(
    x: torch.Tensor,
    row_scales: torch.Tensor | None,
    weight: Packed,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    rows, channels = len(x), weight.channels
    out = torch.empty(rows, channels, dtype=dtype, device=x.device)
    if not rows:
        return out
    tiles = tiling(rows, channels, weight.columns, weight.group, x.element_size())
    fixed = constants(tiles, weight, x.dtype)
    sums = out
    if tiles.parallel:
        kind = torch.int32 if fixed["EXACT"] else torch.float32
        sums = torch.empty(tiles.splits, rows, channels, dtype=kind, device=x.device)
    one = None if fixed["GROUPED"] else weight.scales
    grid = (
        triton.cdiv(rows, tiles.rows),
        triton.cdiv(channels, tiles.channels),
        tiles.splits if tiles.parallel else 1,
    )
    multiply[grid](
        _bits(x),
        _bits(weight.values),
        weight.scales,
        weight.zeros,
        weight.minima,
        row_scales,
        bias,
        sums,
        rows,
        channels,
        weight.columns,
        weight.group,
        x.stride(0),
        **fixed,
        **launch(tiles),
    )
    if tiles.parallel:
        blocks = triton.cdiv(rows * channels, FINISHED)
        finish[(blocks,)](
            sums, row_scales, one, bias, out, rows * channels, channels,
            SPLITS=tiles.splits, WIDTH=FINISHED, **OPTIONS,
        )  # fmt: skip
    return out


def _bits(values: torch.Tensor) -> torch.Tensor:
    """Float8 as bytes: GPUs before sm89 know no pointers to it."""
    return values.view(torch.uint8) if values.dtype == FLOAT8 else values


def constants(tiles: Tiling, weight: Packed, inputs: torch.dtype) -> dict[str, Any]:
    """What `multiply` is compiled for."""
    grouped = weight.group < weight.columns or weight.minima is not None
    return {
        "INPUT": NAMES.get(inputs, "whole"),
        "WEIGHT": NAMES[weight.values.dtype],
        "GROUPED": grouped,
        "EXACT": inputs == torch.int8 and not grouped,
        "SPLITS": tiles.splits,
        "SPAN": tiles.span,
        "PARALLEL": tiles.parallel,
        "ROWS": tiles.rows,
        "CHANNELS": tiles.channels,
        "DEPTH": tiles.depth,
    }


def launch(tiles: Tiling) -> dict[str, Any]:
    """How `multiply` is compiled."""
    return {"num_warps": tiles.warps, "num_stages": tiles.stages, **OPTIONS}


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def multiply(
    x: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    minima: tl.tensor,
    row_scales: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    channels: tl.tensor,
    columns: tl.tensor,
    group: tl.tensor,
    x_stride: tl.tensor,
    INPUT: tl.constexpr,
    WEIGHT: tl.constexpr,
    GROUPED: tl.constexpr,
    EXACT: tl.constexpr,
    SPLITS: tl.constexpr,
    SPAN: tl.constexpr,
    PARALLEL: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """`out` [rows, channels], or with PARALLEL the sums of each piece of columns [splits, rows, channels]."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_row, is_channel = row < rows, channel < channels
    x_rows = x + row.to(tl.int64)[:, None] * x_stride
    width = columns // 2 if WEIGHT == "int4" else columns
    weight_rows = values + channel.to(tl.int64)[:, None] * width
    kind: tl.constexpr = tl.int32 if EXACT else tl.float32
    fresh = tl.zeros([ROWS, CHANNELS], tl.int32 if INPUT == "int8" else tl.float32)
    total = tl.zeros([ROWS, CHANNELS], kind)
    first = tl.program_id(2)  # 0 without PARALLEL
    for split in range(first, first + (1 if PARALLEL else SPLITS)):
        piece = tl.zeros([ROWS, CHANNELS], kind)
        for at in range(split * SPAN, tl.minimum((split + 1) * SPAN, columns), DEPTH):
            table = (at // group if GROUPED else 0) * channels + channel
            zero = None
            if zeros is not None:
                zero = tl.load(zeros + table, mask=is_channel, other=0)
            sums = fresh if GROUPED else piece
            if WEIGHT == "int4":
                middle: tl.constexpr = 8 if minima is None else 0
                sums, inputs = four_bits(
                    x_rows, weight_rows, zero, middle, at, columns, is_row, is_channel, sums, DEPTH
                )
            else:
                sums = eight_bits(
                    x_rows, weight_rows, zero, at, columns, is_row, is_channel, sums, INPUT, WEIGHT, DEPTH
                )
            if GROUPED:
                scale = tl.load(scales + table, mask=is_channel, other=0.0).to(tl.float32)
                piece += sums.to(tl.float32) * scale[None, :]
                if minima is not None:
                    minimum = tl.load(minima + table, mask=is_channel, other=0.0).to(tl.float32)
                    piece += inputs[:, None] * minimum[None, :]
            else:
                piece = sums
        total += piece
    place = row.to(tl.int64)[:, None] * channels + channel[None, :]
    inside = is_row[:, None] & is_channel[None, :]
    if PARALLEL:
        tl.store(out + first.to(tl.int64) * rows * channels + place, total, mask=inside)
    else:
        one = None if GROUPED else scales
        result = finished(
            total, row[:, None], channel[None, :], is_row[:, None], is_channel[None, :], row_scales, one, bias
        )
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def four_bits(
    x_rows: tl.tensor,
    weight_rows: tl.tensor,
    zero: tl.tensor,
    middle: tl.constexpr,
    at: tl.tensor,
    columns: tl.tensor,
    is_row: tl.tensor,
    is_channel: tl.tensor,
    sums: tl.tensor,
    DEPTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """`sums` and the product over DEPTH columns from `at` on; and the sum of each row of x over these."""
    byte = tl.arange(0, DEPTH // 2)
    column = at + byte // 16 * 32 + byte % 16
    is_input = is_row[:, None] & (column < columns)[None, :]
    low = tl.load(x_rows + column[None, :], mask=is_input, other=0.0)
    high = tl.load(x_rows + column[None, :] + 16, mask=is_input, other=0.0)
    is_weight = is_channel[:, None] & (column < columns)[None, :]
    packed = tl.load(weight_rows + at // 2 + byte[None, :], mask=is_weight, other=0)
    # A number beside a tensor of bfloat16 would make float32 of it, so this one is a tensor, too.
    shift = tl.full([1, 1], middle, low.dtype) if zero is None else zero.to(low.dtype)[:, None]
    sums = tl.dot(low, tl.trans((packed & 15).to(low.dtype) - shift), sums, input_precision="ieee")
    sums = tl.dot(high, tl.trans((packed >> 4).to(low.dtype) - shift), sums, input_precision="ieee")
    return sums, tl.sum(low.to(tl.float32) + high.to(tl.float32), 1)


@triton.jit  # type: ignore[untyped-decorator]
def eight_bits(
    x_rows: tl.tensor,
    weight_rows: tl.tensor,
    zero: tl.tensor,
    at: tl.tensor,
    columns: tl.tensor,
    is_row: tl.tensor,
    is_channel: tl.tensor,
    sums: tl.tensor,
    INPUT: tl.constexpr,
    WEIGHT: tl.constexpr,
    DEPTH: tl.constexpr,
) -> tl.tensor:
    """`sums` and the product over DEPTH columns from `at` on."""
    column = at + tl.arange(0, DEPTH)
    seen = (column < columns)[None, :]
    inputs = tl.load(x_rows + column[None, :], mask=is_row[:, None] & seen, other=0)
    weights = tl.load(weight_rows + column[None, :], mask=is_channel[:, None] & seen, other=0)
    if INPUT == "int8":
        sums = tl.dot(inputs, tl.trans(weights), sums, out_dtype=tl.int32)
    elif INPUT == "fp8":
        small = inputs.to(tl.float8e4nv, bitcast=True)
        others = weights.to(tl.float8e4nv, bitcast=True)
        # On sm90 the matrix unit adds up in fewer bits than float32, so not for longer than one step.
        sums = tl.dot(small, tl.trans(others), sums, max_num_imprecise_acc=DEPTH)
    else:
        numbers = (from_float8(weights) if WEIGHT == "fp8" else weights).to(inputs.dtype)
        if zero is not None:
            numbers -= zero.to(inputs.dtype)[:, None]
        sums = tl.dot(inputs, tl.trans(numbers), sums, input_precision="ieee")
    return sums


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def finish(
    pieces: tl.tensor,
    row_scales: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    channels: tl.tensor,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """`out` [rows · channels = count] from the pieces [SPLITS, count] that `multiply` left, added up in order."""
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = place < count
    total = tl.load(pieces + place, mask=inside, other=0)
    for split in range(1, SPLITS):
        total += tl.load(pieces + split * count + place, mask=inside, other=0)
    result = finished(total, place // channels, place % channels, inside, inside, row_scales, scales, bias)
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def finished(
    sums: tl.tensor,
    row: tl.tensor,
    channel: tl.tensor,
    is_row: tl.tensor,
    is_channel: tl.tensor,
    row_scales: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
) -> tl.tensor:
    """The sums at `row` and `channel` as results: float32."""
    result = sums.to(tl.float32)
    if row_scales is not None:
        result *= tl.load(row_scales + row, mask=is_row, other=0.0)
    if scales is not None:
        result *= tl.load(scales + channel, mask=is_channel, other=0.0).to(tl.float32)
    if bias is not None:
        result += tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)
    return result

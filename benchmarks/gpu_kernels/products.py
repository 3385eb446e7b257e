"""Products with quantised weights, at the shapes of a 7B model, and the rounding of their inputs."""

from collections.abc import Iterator
from functools import partial

import torch

from backends.kernels import products as plain
from backends.kernels import triton_products as ours
from backends.kernels.triton_rounding import quantize_rows
from backends.quantization.grouped import Grouped
from backends.quantization.int4 import rounded as rounded_to_four
from backends.quantization.packed import FLOAT8, Packed, from_float8, from_four_bits, from_grouped, rounded
from backends.quantization.packing import fp8
from benchmarks.gpu_kernels.case import Case, Kind, Setting

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}

PRODUCT = ("multiply", "finish")  # the latter with few rows


def cases(setting: Setting) -> Iterator[Case]:
    columns = setting.size(4096, 256)
    many = setting.size(4096, 70)
    row_counts = (1, many) if setting.tiny else (1, 16, many) if setting.quick else (1, 4, 16, 64, 512, many)
    weights = _weights(setting, setting.size(4096, 72), columns)
    for name, weight in weights.items():
        for rows in row_counts:
            yield _weight_only(setting, name, weight, rows)
    for rows in row_counts:
        yield _scaled(setting, "int8 by int8", weights["int8"], rows, "int8")
        if setting.has_float8:
            yield _scaled(setting, "float8 by float8", weights["float8"], rows, "fp8")
            yield _scaled(setting, "float8 by float8 in blocks", weights["float8 in blocks"], rows, "fp8")
    for dtype in (torch.int8, FLOAT8):
        yield _rounding(setting, dtype, row_counts[-1], columns)
    yield _alone(setting, weights["int4 in groups of 128 with zeros"])


def _weights(setting: Setting, channels: int, columns: int) -> dict[str, Packed]:
    whole = torch.randn(channels, columns) / columns**0.5
    found = {
        "int8": rounded(whole),
        "int8 in groups of 128 with zeros": from_grouped(_grouped(8, 128, channels, columns)),
        "int4 in groups of 32 with minima": from_four_bits(rounded_to_four(whole)),
        "int4 in groups of 128": from_grouped(_grouped(4, 128, channels, columns, symmetric=True)),
        "int4 in groups of 128 with zeros": from_grouped(_grouped(4, 128, channels, columns)),
        "float8": from_float8(fp8.rounded(whole, (1, columns))),
        "float8 in blocks": from_float8(fp8.rounded(whole, (128, 128))),
    }
    if not setting.quick:
        found["int4 in groups of 64 with zeros"] = from_grouped(_grouped(4, 64, channels, columns))
    return {name: weight.to(setting.device) for name, weight in found.items()}


def _grouped(bits: int, group: int, channels: int, columns: int, *, symmetric: bool = False) -> Grouped:
    groups, most = columns // group, 1 << bits
    integers = torch.randint(0, most, (channels, columns), dtype=torch.uint8)
    zeros = torch.randint(0, most, (channels, groups), dtype=torch.uint8)
    if symmetric:
        zeros.fill_(most // 2)
    return Grouped(bits, integers, (torch.rand(channels, groups) + 0.5).half() / most, zeros)


def _weight_only(setting: Setting, name: str, weight: Packed, rows: int) -> Case:
    x = setting.normal(rows, weight.columns)
    return Case(
        name=f"{name}, {rows} rows",
        kernels=PRODUCT,
        check=lambda: ((ours.weight_only(x, weight),), (plain.weight_only(x, weight),)),
        run=partial(ours.weight_only, x, weight),
        bytes=weight.nbytes + x.nbytes + rows * weight.channels * x.element_size(),
        tolerance=TOLERANCE[setting.dtype],
        operations=2.0 * rows * weight.channels * weight.columns,
    )


def _scaled(setting: Setting, name: str, weight: Packed, rows: int, kind: Kind) -> Case:
    x, scales = plain.quantize_rows(setting.normal(rows, weight.columns), weight.values.dtype)
    args, dtype = (x, scales, weight), setting.dtype
    return Case(
        name=f"{name}, {rows} rows",
        kernels=PRODUCT,
        check=lambda: ((ours.scaled(*args, dtype=dtype),), (plain.scaled(*args, dtype=dtype),)),
        run=partial(ours.scaled, *args, dtype=dtype),
        bytes=weight.nbytes + x.nbytes + scales.nbytes + rows * weight.channels * dtype.itemsize,
        tolerance=0.0 if kind == "int8" else TOLERANCE[dtype],
        operations=2.0 * rows * weight.channels * weight.columns,
        kind=kind,
    )


def _rounding(setting: Setting, dtype: torch.dtype, rows: int, columns: int) -> Case:
    x = setting.normal(rows, columns)
    return Case(
        name=f"rounding to {str(dtype).removeprefix('torch.')}, {rows} rows",
        kernels=("quantize",),
        check=lambda: (quantize_rows(x, dtype), plain.quantize_rows(x, dtype)),
        run=partial(quantize_rows, x, dtype),
        bytes=x.nbytes + rows * (columns + 4),
        tolerance=0.0,
    )


def _alone(setting: Setting, weight: Packed) -> Case:
    """A row's answer must not hang on the rows beside it, as long as its tile is one of the same instruction."""
    x = setting.normal(16, weight.columns)
    return Case(
        name="a row alone and among 16",
        kernels=PRODUCT,
        check=lambda: ((ours.weight_only(x, weight)[:1],), (ours.weight_only(x[:1], weight),)),
        run=partial(ours.weight_only, x[:1], weight),
        bytes=weight.nbytes,
        tolerance=0.0,
    )

"""The products compile for the GPUs that they are meant for, on their matrix units and within their shared memory."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from backends.kernels.tiling import tiling
from backends.quantization.packed import FLOAT8, Packed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="triton is installed on Linux only")

CAPABILITIES = [80, 90, 100]
FLOAT8_SINCE = 89
CHANNELS, COLUMNS = 4096, 4096
BF16, F16, F32, I8, U8 = torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.uint8
POINTERS = {BF16: "*bf16", F16: "*fp16", F32: "*fp32", I8: "*i8", U8: "*u8", FLOAT8: "*u8"}
Compile = Callable[..., Any]
# inputs, values of the weights, group, whether there are zeros, and minima
Case = tuple[torch.dtype, torch.dtype, int, bool, bool]
CASES: list[Case] = [
    (BF16, U8, 128, True, False),
    (BF16, U8, 32, False, True),
    (BF16, I8, COLUMNS, False, False),
    (F16, FLOAT8, 128, False, False),
    (I8, I8, COLUMNS, False, False),
    (FLOAT8, FLOAT8, COLUMNS, False, False),
    (BF16, U8, 64, False, False),
]
MORE: list[Case] = [
    (F16, U8, 32, False, True),
    (F16, U8, 64, False, False),
    (F32, U8, 128, True, False),
    (F32, I8, COLUMNS, False, False),
    (BF16, I8, 128, True, False),
    (BF16, FLOAT8, COLUMNS, False, False),
    (FLOAT8, FLOAT8, 128, False, False),
]


def check(compile_for: Compile, capability: int, rows: int, case: Case) -> None:
    from backends.kernels.triton_products import constants, launch, multiply

    inputs, values, group, zeros, minima = case
    if inputs == FLOAT8 and capability < FLOAT8_SINCE:
        pytest.skip("products of float8 need sm89; older GPUs multiply inputs of 16 bits by them")
    weight = _weight(values, group, zeros, minima)
    tiles = tiling(rows, CHANNELS, COLUMNS, group, inputs.itemsize)
    fixed = constants(tiles, weight, inputs)
    whole = BF16 if inputs.itemsize == 1 else inputs
    sums = "*i32" if fixed["EXACT"] else "*fp32"
    types = {"x": POINTERS[inputs], "values": POINTERS[values], "scales": "*fp16", "minima": "*fp16"}
    types |= {"zeros": "*u8" if values == U8 else "*i8", "row_scales": "*fp32", "bias": POINTERS[whole]}
    types["out"] = sums if tiles.parallel else POINTERS[whole]
    present = {"zeros": zeros, "minima": minima, "row_scales": inputs.itemsize == 1}
    absent = {name: None for name, given in present.items() if not given}
    kernel = compile_for(capability, multiply, types, fixed | absent, launch(tiles))
    assert inputs == F32 or "mma" in kernel.asm["ptx"]


def _weight(values: torch.dtype, group: int, zeros: bool, minima: bool) -> Packed:
    """Of no memory: only types and sizes count."""
    width = COLUMNS // 2 if values == U8 else COLUMNS
    table = torch.empty(COLUMNS // group, CHANNELS, dtype=F16, device="meta")
    return Packed(
        torch.empty(CHANNELS, width, dtype=values, device="meta"),
        table,
        group,
        table if zeros else None,
        table if minima else None,
    )


@pytest.mark.parametrize(
    ("capability", "case"),
    [
        *((90, case) for case in CASES),
        (80, CASES[0]),
        (80, CASES[3]),
        (80, CASES[4]),
        (100, CASES[0]),
        (100, CASES[5]),
    ],
    ids=str,
)
def test_products_of_few_rows(compile_for: Compile, capability: int, case: Case) -> None:
    check(compile_for, capability, 4, case)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [4, 32, 4096])
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("case", CASES + MORE, ids=str)
def test_products_of_any_number_of_rows(compile_for: Compile, capability: int, rows: int, case: Case) -> None:
    check(compile_for, capability, rows, case)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_what_surrounds_them(compile_for: Compile, capability: int) -> None:
    from backends.kernels.triton_products import finish
    from backends.kernels.triton_rounding import quantize
    from backends.kernels.triton_types import OPTIONS

    types = {"pieces": "*i32", "row_scales": "*fp32", "scales": "*fp16", "bias": "*bf16", "out": "*bf16"}
    compile_for(capability, finish, types, {"SPLITS": 8, "WIDTH": 1024}, OPTIONS)
    for dtype, most in ((I8, 127.0), (FLOAT8, 448.0)):
        types = {"x": "*bf16", "values": POINTERS[dtype], "scales": "*fp32"}
        compile_for(capability, quantize, types, {"MOST": most, "WIDTH": 1024, "WHOLE": dtype == I8}, OPTIONS)

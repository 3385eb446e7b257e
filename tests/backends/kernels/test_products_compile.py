"""The products compile for the GPUs that they are meant for, within what these have of shared memory; no GPU is needed.

Integers and addresses are told to be multiples of 16, as they are when a model runs: the compiler then loads ahead,
which is what takes the memory.
"""

import sys
from typing import Any

import pytest
import torch

from backends.kernels.tiling import tiling
from backends.quantization.packed import FLOAT8, Packed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="triton is installed on Linux only")

SHARED_MEMORY = {80: 166_912, 90: 232_448, 100: 232_448}  # bytes that one program may have
CHANNELS, COLUMNS = 4096, 4096
BF16, F16, F32, I8, U8 = torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.uint8
Case = tuple[torch.dtype, torch.dtype, int, bool, bool]
POINTERS = {BF16: "*bf16", F16: "*fp16", F32: "*fp32", I8: "*i8", U8: "*u8", FLOAT8: "*u8"}
# inputs, values of the weights, group, whether there are zeros, and minima
CASES: list[Case] = [
    (BF16, U8, 128, True, False),
    (F16, U8, 32, False, True),
    (BF16, I8, COLUMNS, False, False),
    (F16, FLOAT8, 128, False, False),
    (I8, I8, COLUMNS, False, False),
    (FLOAT8, FLOAT8, COLUMNS, False, False),
]
MORE: list[Case] = [
    (BF16, U8, 64, False, False),
    (F32, U8, 128, True, False),
    (F32, I8, COLUMNS, False, False),
    (BF16, I8, 128, True, False),
    (BF16, FLOAT8, COLUMNS, False, False),
    (FLOAT8, FLOAT8, 128, False, False),
]


def compiled(
    kernel: Any, capability: int, pointers: dict[str, str], constants: dict[str, Any], **options: Any
) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if name not in constants and name not in ("rows", "count")
    }
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def product(
    capability: int,
    rows: int,
    inputs: torch.dtype,
    values: torch.dtype,
    group: int,
    zeros: bool,
    minima: bool,
) -> Any:
    from backends.kernels.triton_products import constants, launch, multiply

    groups, width = COLUMNS // group, COLUMNS // 2 if values == U8 else COLUMNS
    table = torch.empty(groups, CHANNELS, dtype=F16, device="meta")
    weight = Packed(
        torch.empty(CHANNELS, width, dtype=values, device="meta"),
        table,
        group,
        table if zeros else None,
        table if minima else None,
    )
    tiles = tiling(rows, CHANNELS, COLUMNS, group, inputs.itemsize)
    fixed = constants(tiles, weight, inputs)
    whole = BF16 if inputs.itemsize == 1 else inputs
    sums = "*i32" if fixed["EXACT"] else "*fp32"
    pointers = {
        "x": POINTERS[inputs],
        "values": POINTERS[values],
        "scales": "*fp16",
        "zeros": "*u8" if values == U8 else "*i8",
        "minima": "*fp16",
        "row_scales": "*fp32",
        "bias": POINTERS[whole],
        "out": sums if tiles.parallel else POINTERS[whole],
    }
    present = {"zeros": zeros, "minima": minima, "row_scales": inputs.itemsize == 1}
    absent = {name: None for name, given in present.items() if not given}
    return compiled(multiply, capability, pointers, fixed | absent, **launch(tiles))


def check(capability: int, rows: int, case: Case) -> None:
    if case[0] == FLOAT8 and capability < 89:
        pytest.skip("products of float8 need sm89; older GPUs multiply inputs of 16 bits by them")
    kernel = product(capability, rows, *case)
    assert kernel.asm["cubin"]
    assert kernel.metadata.shared <= SHARED_MEMORY[capability]
    if case[0] != F32:
        assert "mma" in kernel.asm["ptx"], "on the matrix units"


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
def test_products_of_few_rows(capability: int, case: Case) -> None:
    check(capability, 4, case)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [4, 32, 4096])
@pytest.mark.parametrize("capability", SHARED_MEMORY)
@pytest.mark.parametrize("case", CASES + MORE, ids=str)
def test_products_of_any_number_of_rows(capability: int, rows: int, case: Case) -> None:
    check(capability, rows, case)


@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_what_surrounds_them(capability: int) -> None:
    from backends.kernels.triton_products import finish
    from backends.kernels.triton_rounding import quantize
    from backends.kernels.triton_types import OPTIONS

    pointers = {"pieces": "*i32", "row_scales": "*fp32", "scales": "*fp16", "bias": "*bf16", "out": "*bf16"}
    assert compiled(finish, capability, pointers, {"SPLITS": 8, "WIDTH": 1024}, **OPTIONS).asm["cubin"]
    for dtype, most in ((I8, 127.0), (FLOAT8, 448.0)):
        if dtype == I8 or capability >= 89:
            pointers = {"x": "*bf16", "values": "*i8" if dtype == I8 else "*fp8e4nv", "scales": "*fp32"}
            constants = {"MOST": most, "WIDTH": 1024, "WHOLE": dtype == I8}
            assert compiled(quantize, capability, pointers, constants, **OPTIONS).asm["cubin"]

"""The Triton kernels compile for the GPUs that they are meant for, within their shared memory. It takes no GPU."""

import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="triton is installed on Linux only")


CAPABILITIES = [80, 90, 100]
Compile = Callable[..., Any]
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def attention(
    compile_for: Compile,
    capability: int,
    dtype: str,
    group: int,
    size: int,
    *,
    short: bool,
    cache: str | None = None,
    window: int | None = None,
    cap: float | None = None,
) -> Any:
    """`cache`: the type of keys and values where it is not `dtype`; they have scales then."""
    from backends.kernels.triton_attention import attend, constants, shape_of

    shape = shape_of(group, size, BYTES[dtype], short=short)
    compiled = constants(group, size, 16, cap, window, shape) | {"SCALED": cache is not None}
    parts = "*fp32" if shape.pieces > 1 else f"*{dtype}"
    types = {"q": f"*{dtype}", "out": f"*{dtype}", "means": parts, "sums": parts}
    types |= {name: f"*{cache or dtype}" for name in ("keys", "values")}
    types |= {name: "*i32" for name in ("tiles", "positions", "tables")}
    types |= {"scale": "fp32", "soft_cap": "fp32"}
    scales = ("key_scales", "value_scales")
    if cache is None:
        compiled |= dict.fromkeys(scales)
    else:
        types |= dict.fromkeys(scales, "*fp32")
    return compile_for(capability, attend, types, compiled, shape.options)


@pytest.mark.parametrize("short", [True, False], ids=["short", "long"])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_attention_in_bfloat16(compile_for: Compile, capability: int, short: bool) -> None:
    """Long spans by the instructions that multiply whole tiles, where a device has such."""
    compiled = attention(compile_for, capability, "bf16", 4, 128, short=short)
    instruction = {
        80: "mma.sync",
        90: "mma.sync" if short else "wgmma",
        100: "mma.sync" if short else "tcgen05",
    }
    assert instruction[capability] in compiled.asm["ptx"]


@pytest.mark.parametrize(("capability", "cache"), [(80, "u8"), (80, "i8"), (90, "fp8e4nv"), (100, "fp8e4nv")])
def test_attention_over_eight_bits(compile_for: Compile, capability: int, cache: str) -> None:
    attention(compile_for, capability, "bf16", 8, 128, short=True, cache=cache)


@pytest.mark.parametrize(
    ("dtype", "size", "window", "cap"), [("fp16", 80, None, None), ("fp32", 64, 4096, 50.0)]
)
def test_attention_in_other_types(
    compile_for: Compile, dtype: str, size: int, window: int | None, cap: float | None
) -> None:
    attention(compile_for, 90, dtype, 3, size, short=True, window=window, cap=cap)


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_attention_of_every_shape(compile_for: Compile, capability: int, size: int) -> None:
    for dtype, short, (window, cap) in product(BYTES, (True, False), ((None, None), (4096, 50.0))):
        attention(compile_for, capability, dtype, 7, size, short=short, window=window, cap=cap)
    for cache, short in product(("i8", "u8" if capability == 80 else "fp8e4nv"), (True, False)):
        attention(compile_for, capability, "bf16", 4, size, short=short, cache=cache)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_merge_of_pieces(compile_for: Compile, capability: int) -> None:
    from backends.kernels.triton_attention import PIECES, merge
    from backends.kernels.triton_types import OPTIONS

    types = {"means": "*fp32", "sums": "*fp32", "out": "*bf16", "order": "*i32"}
    compile_for(capability, merge, types, {"SIZE": 128, "COLUMNS": 128, "PIECES": PIECES}, OPTIONS)

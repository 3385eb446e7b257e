"""The Triton kernels compile for the GPUs that they are meant for, within their shared memory. It takes no GPU."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="triton is installed on Linux only")


# All of them in the slow suite; one of them tells most mistakes in a second.
CAPABILITIES = [pytest.param(80, marks=pytest.mark.slow), 90, pytest.param(100, marks=pytest.mark.slow)]
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

    scaled = cache is not None
    shape = shape_of(group, size, BYTES[dtype], short=short, scaled=scaled, as_bytes=cache == "u8")
    compiled = constants(group, size, 16, cap, window, shape) | {"SCALED": scaled}
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


@pytest.mark.parametrize(
    ("capability", "cache"),
    [
        (80, "u8"),
        pytest.param(80, "i8", marks=pytest.mark.slow),
        pytest.param(90, "fp8e4nv", marks=pytest.mark.slow),
        pytest.param(100, "fp8e4nv", marks=pytest.mark.slow),
    ],
)
def test_attention_over_eight_bits(compile_for: Compile, capability: int, cache: str) -> None:
    attention(compile_for, capability, "bf16", 8, 128, short=True, cache=cache)


def test_wide_heads_over_eight_bits_with_limits(compile_for: Compile) -> None:
    """Gemma's: heads of 256 take the most shared memory, and limits the most registers."""
    attention(compile_for, 80, "bf16", 2, 256, short=False, cache="i8", window=4096, cap=50.0)


@pytest.mark.parametrize(
    ("dtype", "size", "window", "cap"),
    [pytest.param("fp16", 80, None, None, marks=pytest.mark.slow), ("fp32", 64, 4096, 50.0)],
)
def test_attention_in_other_types(
    compile_for: Compile, dtype: str, size: int, window: int | None, cap: float | None
) -> None:
    attention(compile_for, 90, dtype, 3, size, short=True, window=window, cap=cap)


PLAIN, LIMITED = (None, None), (4096, 50.0)  # windows and caps
# Where both take the same shared memory, one of them tells enough: float16 differs from bfloat16 in its matrix
# instruction alone, and what float32 spills is not asked.
WAYS = [("bf16", *PLAIN), ("bf16", *LIMITED), ("fp16", *PLAIN), ("fp32", *LIMITED)]


@pytest.mark.slow
@pytest.mark.parametrize("short", [True, False], ids=["short", "long"])
@pytest.mark.parametrize("size", [64, 96, 128, 256])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_attention_of_every_shape(compile_for: Compile, capability: int, size: int, short: bool) -> None:
    """96 fills three quarters of its columns, and stands for 80, which has the same tiles."""
    for dtype, window, cap in WAYS:
        attention(compile_for, capability, dtype, 7, size, short=short, window=window, cap=cap)
    for cache in ("i8", "u8" if capability == 80 else "fp8e4nv"):
        for window, cap in (PLAIN, LIMITED):
            attention(
                compile_for, capability, "bf16", 4, size, short=short, cache=cache, window=window, cap=cap
            )


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_merge_of_pieces(compile_for: Compile, capability: int) -> None:
    from backends.kernels.triton_attention import PIECES, merge
    from backends.kernels.triton_types import OPTIONS

    types = {"means": "*fp32", "sums": "*fp32", "out": "*bf16", "order": "*i32"}
    compile_for(capability, merge, types, {"SIZE": 128, "COLUMNS": 128, "PIECES": PIECES}, OPTIONS)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", ["bf16", pytest.param("fp32", marks=pytest.mark.slow)])
def test_rows(compile_for: Compile, dtype: str, capability: int) -> None:
    from backends.kernels.triton_rows import COLUMNS, HEADS, gate_mul, norm, norm_each, norm_options
    from backends.kernels.triton_types import OPTIONS

    floats = dict.fromkeys(("update", "out", "qkv", "gate_up"), f"*{dtype}") | {"eps": "fp32"}
    floats |= dict.fromkeys(("residual", "weight", "queries", "keys"), "*fp32")
    options = norm_options(8192)
    sizes: dict[str, Any] = {"WIDTH": 8192, "COLUMNS": options.pop("COLUMNS")}
    compile_for(capability, norm, floats, sizes, options)
    compile_for(capability, norm, floats, sizes | {"residual": None}, options)
    heads = {"QUERIES": 32, "NORMED": 40, "SIZE": 128, "HEADS": HEADS, "COLUMNS": 128}
    compile_for(capability, norm_each, floats, heads, OPTIONS)
    gate = {"WIDTH": 14336, "COLUMNS": COLUMNS, "GELU": True}
    compile_for(capability, gate_mul, floats, gate, OPTIONS)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize(
    ("dtype", "cache", "largest", "size", "half"),
    [("bf16", "bf16", 0.0, 128, 64), ("bf16", "i8", 127.0, 80, 16), ("fp16", "u8", 448.0, 64, 32)],
)
def test_rotation(
    compile_for: Compile, capability: int, dtype: str, cache: str, largest: float, size: int, half: int
) -> None:
    from backends.kernels.kv_formats import LEAST
    from backends.kernels.triton_rotation import HEADS, rotate
    from backends.kernels.triton_types import OPTIONS

    types = {"qkv": f"*{dtype}", "keys": f"*{cache}", "values": f"*{cache}", "cos": "*fp32", "sin": "*fp32"}
    types |= dict.fromkeys(("positions", "angles", "rows", "tables"), "*i32")
    constants: dict[str, Any] = {
        "QUERIES": 32,
        "KV_HEADS": 8,
        "SIZE": size,
        "HALF": half,
        "BLOCK": 16,
        "ROTATED": True,
    }
    constants |= {"LARGEST": largest, "LEAST": LEAST, "HEADS": HEADS, "HALF_COLUMNS": half}
    constants["REST_COLUMNS"] = 64 if size > 2 * half else 0
    scales = ("key_scales", "value_scales")
    if largest:
        types |= dict.fromkeys(scales, "*fp32")
    else:
        constants |= dict.fromkeys(scales)
    compile_for(capability, rotate, types, constants, OPTIONS)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_sampling(compile_for: Compile, capability: int) -> None:
    from backends.kernels.triton_sampling import COLUMNS, cut, draw_pieces
    from backends.kernels.triton_types import OPTIONS

    types = dict.fromkeys(("logits", "scores", "settings"), "*fp32")
    types |= {"ranks": "*i32", "keys": "*i64", "best": "*fp64", "tokens": "*i64"}
    compile_for(capability, cut, types, {"COLUMNS": COLUMNS}, {"num_warps": 8, **OPTIONS})
    compile_for(capability, draw_pieces, types, {"COLUMNS": COLUMNS}, OPTIONS)

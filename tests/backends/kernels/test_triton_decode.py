"""The Triton kernel: right under the interpreter, and it compiles for the GPUs that it is meant for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "interpreted_decode.py"
SHARED_MEMORY = {80: 166_912, 90: 232_448, 100: 232_448}  # bytes that one program may have


def test_it_equals_plain_torch_under_the_interpreter() -> None:
    """In a process of its own: Triton looks at the variable when a kernel is defined.

    float32 and float16 only: the interpreter multiplies bfloat16's bit patterns (triton-lang/triton#11584).
    """
    done = subprocess.run(
        [sys.executable, str(CASES)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "8 cases"


@pytest.mark.skipif(sys.platform != "linux", reason="triton is installed on Linux only")
@pytest.mark.parametrize("capability", SHARED_MEMORY)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("group", "size", "capped", "window"), [(4, 128, False, None), (3, 64, True, 4096)])
def test_it_compiles_within_the_shared_memory(
    capability: int, dtype: str, group: int, size: int, capped: bool, window: int | None
) -> None:
    """No GPU is needed for it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from backends.kernels.triton_decode import OPTIONS, constants, decode

    constexprs = constants(group, size, 16, capped, window)
    pointers = {name: f"*{dtype}" for name in ("q", "keys", "values", "out")}
    pointers |= {name: "*i32" for name in ("tokens", "positions", "rows", "tables")}
    numbers = {"scale": "fp32", "soft_cap": "fp32"}
    signature = {
        name: "constexpr" if name in constexprs else pointers.get(name, numbers.get(name, "i32"))
        for name in decode.arg_names
    }
    compiled = triton.compile(
        ASTSource(decode, signature, constexprs), target=GPUTarget("cuda", capability, 32), options=OPTIONS
    )
    assert compiled.asm["cubin"]
    assert compiled.metadata.shared <= SHARED_MEMORY[capability]

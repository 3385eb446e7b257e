"""Compiles Triton kernels for GPUs that are not there, as they would be launched on them."""

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

# Bytes that one program may have, by compute capability.
SHARED_MEMORY = {80: 166_912, 90: 232_448, 100: 232_448}
SPILLED = 128  # bytes of each thread's numbers that may lie in memory, for want of registers


def _compile(
    capability: int,
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Any:
    """The compiled kernel; asserts that it exists, that its shared memory is within the device's, and that next to
    nothing is spilled, but for float32, in which nobody serves on GPUs.

    `types`: of each argument that is neither constant nor an int32. Pointers and strides are multiples of 16, which is
    what lets copies run ahead, and that is what takes the memory.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    aligned = [place for place, name in enumerate(names) if signature[name].startswith(("*", "i32"))]
    attributes = {(place,): [["tt.divisibility", 16]] for place in aligned}
    compiled = triton.compile(
        ASTSource(kernel, signature, dict(constants), attributes),
        target=GPUTarget("cuda", capability, 32),
        options=dict(options),
    )
    assert compiled.asm["cubin"]
    assert compiled.metadata.shared <= SHARED_MEMORY[capability]
    if "*fp32" not in (types.get("q"), types.get("x")):
        assert _spilled(compiled.asm["cubin"]) <= SPILLED
    return compiled


def _spilled(cubin: bytes) -> int:
    """Bytes of a thread's stack."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return max(int(stack) for stack in re.findall(r"STACK:(\d+)", told))


@pytest.fixture(scope="session")
def compile_for() -> Callable[..., Any]:
    """`compile_for(capability, kernel, types, constants, options)`, see `_compile`."""
    return _compile
